"""Reductions along dims, and sorting along one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor")
@rule("argmax", "argmin")
def reduce(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """The result lacks the reduced dims. One FLOP an element of the operand."""
    shape, axes = operands[0].shape, equation.params["axes"]
    out = tuple(sequence for i, sequence in enumerate(shape) if i not in axes)
    contracted = tuple(shape[i] for i in axes)
    result = recorder.add_value(equation.outvars[0].aval, recorder.atoms.restore(out))
    flops = float(elements(equation.invars[0]))
    name = equation.primitive.name
    recorder.add_operation(name, "reduce", [(operands[0], shape)], [result], shape, contracted, flops)
    return [result]


@rule("sort")
def sort(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Every operand is permuted along one dim, and keeps its dims."""
    for array in operands[1:]:
        recorder.unify(operands[0].shape, array.shape)
    results = [
        recorder.add_value(variable.aval, array.shape)
        for variable, array in zip(equation.outvars, operands, strict=True)
    ]
    reads = [(array, array.shape) for array in operands]
    recorder.add_operation("sort", "reduce", reads, results, operands[0].shape, (), float(elements(equation.invars[0])))
    return results


@rule("top_k", "approx_top_k")
def top_k(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Values and indices of the largest along the last dim (approx_top_k names its dim)."""
    shape = operands[0].shape
    dimension = equation.params.get("reduction_dimension", len(shape) - 1) % len(shape)
    kept = recorder.atoms.sequence(sizes(equation.outvars[0])[dimension], "top_k")
    out = recorder.atoms.distinct(tuple(kept if i == dimension else s for i, s in enumerate(shape)))[0]
    results = [recorder.add_value(variable.aval, out) for variable in equation.outvars]
    flops = float(elements(equation.invars[0]))
    recorder.add_operation(
        "top_k",
        "reduce",
        [(operands[0], shape)],
        results,
        (*out, shape[dimension]),
        (shape[dimension],),
        flops,
    )
    return results


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window", "select_and_gather_add")
def window(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Pooling: dims that keep their size keep their atoms. One FLOP an element of each window."""
    before, after = sizes(equation.invars[0]), sizes(equation.outvars[0])
    out = []
    for sequence, old, size in zip(operands[0].shape, before, after, strict=True):
        if old != size:
            pooled = recorder.atoms.sequence(size, "pool")
            if pooled and sequence:
                recorder.parts[pooled[0]] = sequence
            sequence = pooled
        out.append(sequence)
    shape = recorder.atoms.distinct(tuple(out))[0]
    results = [recorder.add_value(variable.aval, shape) for variable in equation.outvars]
    reads = [(operands[0], operands[0].shape)]
    work = float(elements(equation.outvars[0]) * math.prod(equation.params["window_dimensions"]))
    recorder.add_operation(equation.primitive.name, "reduce", reads, results, operands[0].shape, (), work)
    return results


@rule("select_and_scatter_add")
def unpool(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """The gradient of max pooling: (gradient, pooled operand) -> a gradient of the operand's dims."""
    gradient, operand = operands[0], operands[1]
    result = recorder.add_value(equation.outvars[0].aval, operand.shape)
    reads = [(gradient, gradient.shape), (operand, operand.shape)]
    work = float(elements(equation.invars[1]))
    recorder.add_operation("select_and_scatter_add", "reduce", reads, [result], operand.shape, (), work)
    return [result]
