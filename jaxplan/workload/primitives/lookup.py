"""Lookups by index: gather, scatter, and the dynamic slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule
from jaxplan.workload.table import DimIds


@rule("gather")
def gather(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Rows of a table by index: dims of the indices, then those of a row. Indexed dims are contracted."""
    atoms, numbers = recorder.atoms, equation.params["dimension_numbers"]
    table, indices = operands[0].shape, operands[1].shape
    table_sizes, out_sizes = sizes(equation.invars[0]), sizes(equation.outvars[0])
    slice_sizes = equation.params["slice_sizes"]
    for i, j in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        recorder.unify((table[i],), (indices[j],))
    batching = numbers.operand_batching_dims
    kept = [i for i in range(len(table)) if i not in (*numbers.collapsed_slice_dims, *batching)]
    out: list[DimIds] = [()] * len(out_sizes)
    for j, i in zip(numbers.offset_dims, kept, strict=True):
        whole_row = slice_sizes[i] == table_sizes[i]
        out[j] = table[i] if whole_row else atoms.sequence(out_sizes[j], "slice")
    rest = iter(indices)
    for j in range(len(out_sizes)):
        if j not in numbers.offset_dims:
            out[j] = next(rest)
    contracted = tuple(table[i] for i in range(len(table)) if i not in batching and slice_sizes[i] != table_sizes[i])
    whole = atoms.distinct((*out, *contracted))[0]
    result = recorder.add_value(equation.outvars[0].aval, whole[: len(out)])
    recorder.tables[recorder.place.path] = (table, indices, whole)
    reads = [(operands[0], table), (operands[1], indices)]
    recorder.add_operation("gather", "lookup", reads, [result], whole, whole[len(out) :])
    return [result]


@rule("scatter", "scatter_add", "scatter-add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub")
@rule("scatter-mul", "scatter-min", "scatter-max", "scatter-sub", "scatter-apply")
def scatter(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Updates written to (or added into) rows of a table by index: the transpose of a lookup."""
    atoms, numbers = recorder.atoms, equation.params["dimension_numbers"]
    table, indices, updates = (operand.shape for operand in operands[:3])
    table_sizes, update_sizes = sizes(equation.invars[0]), sizes(equation.invars[2])
    for i, j in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        recorder.unify((table[i],), (indices[j],))
    windows = numbers.update_window_dims
    kept = [i for i in range(len(table)) if i not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    for j, i in zip(windows, kept, strict=True):
        if update_sizes[j] == table_sizes[i]:
            recorder.unify((updates[j],), (table[i],))
    rows = [j for j in range(len(updates)) if j not in windows]
    for k, j in enumerate(rows):
        recorder.unify((updates[j],), (indices[k],))
    present = set(atoms.flat(table))
    contracted = tuple(updates[j] for j in rows if not present & set(atoms.leaves(updates[j])))
    result = recorder.add_value(equation.outvars[0].aval, table)
    reads = [(operands[0], table), (operands[1], indices), (operands[2], updates)]
    flops = float(elements(equation.invars[2]))
    recorder.add_operation(equation.primitive.name, "lookup", reads, [result], (*table, *contracted), contracted, flops)
    return [result]


@rule("dynamic_update_slice")
def dynamic_update_slice(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """The result has the dims of what is updated; dims of equal size are the same in the update."""
    table, update = operands[0].shape, operands[1].shape
    same = [x == y for x, y in zip(sizes(equation.invars[0]), sizes(equation.invars[1]), strict=True)]
    recorder.unify(
        tuple(sequence for sequence, equal in zip(table, same, strict=True) if equal),
        tuple(sequence for sequence, equal in zip(update, same, strict=True) if equal),
    )
    result = recorder.add_value(equation.outvars[0].aval, table)
    reads = [(operands[0], table), (operands[1], update)]
    recorder.add_operation("dynamic_update_slice", "move", reads, [result], table)
    return [result]
