"""Primitives that rearrange, cut and join. Those that only relabel (reshape, transpose) keep their operand's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule
from jaxplan.workload.table import DimIds, Shape


def moved(recorder: Recorder, equation: Any, operands: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
    """New values that hold (parts of) the operands' elements; the operation's dims are those of the largest."""
    atoms = recorder.atoms
    results = [
        recorder.add_value(variable.aval, shape) for variable, shape in zip(equation.outvars, shapes, strict=True)
    ]
    reads = [(array, array.shape) for array in operands if array.shape]
    every = [*shapes, *(array.shape for array in operands)]
    widest = max(every, key=lambda shape: atoms.elements(atoms.flat(shape)))
    recorder.add_operation(equation.primitive.name, "move", reads, results, widest)
    return results


@rule("reshape")
def reshape(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Flatten and regroup the atoms; a cut inside an atom splits it everywhere."""
    shape = recorder.atoms.regroup(operands[0].shape, sizes(equation.outvars[0]))
    if shape is None:
        return recorder.uncover("reshape", equation.outvars, operands)
    return [Array(shape, operands[0].value)]


@rule("transpose")
def transpose(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    shape = tuple(operands[0].shape[i] for i in equation.params["permutation"])
    return [Array(shape, operands[0].value)]


@rule("squeeze")
def squeeze(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    dropped = equation.params["dimensions"]
    shape = tuple(sequence for i, sequence in enumerate(operands[0].shape) if i not in dropped)
    return [Array(shape, operands[0].value)]


@rule("copy", "copy_p", "optimization_barrier", "sharding_constraint", "layout_constraint", "pvary", "pcast")
@rule("reshard", "stop_gradient", "device_put")
def same(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Nothing changes but where or when it lies."""
    return list(operands)


@rule("name")
def name(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """`jax.ad_checkpoint.checkpoint_name`: the value is tagged."""
    if operands[0].value is not None:
        recorder.values[operands[0].value].tag = equation.params["name"]
    return [operands[0]]


@rule("broadcast_in_dim")
def broadcast_in_dim(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Dims of equal size are the operand's; the others are new and learn their names from whoever reads them."""
    in_sizes, out_sizes = sizes(equation.invars[0]), sizes(equation.outvars[0])
    source: dict[int, DimIds] = {
        j: operands[0].shape[i]
        for i, j in enumerate(equation.params["broadcast_dimensions"])
        if in_sizes[i] == out_sizes[j]
    }
    shape = tuple(
        source[j] if j in source else recorder.atoms.sequence(size, "broadcast") for j, size in enumerate(out_sizes)
    )
    if elements(equation.outvars[0]) == elements(equation.invars[0]):
        return [Array(shape, operands[0].value)]
    return moved(recorder, equation, operands[:1], [recorder.atoms.distinct(shape)[0]])


@rule("rev")
def reverse(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    return moved(recorder, equation, operands, [operands[0].shape])


@rule("slice", "dynamic_slice")
def cut(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Dims that keep their size keep their atoms."""
    return moved(recorder, equation, operands[:1], [_resized(recorder, equation, operands[0], 0)])


@rule("pad")
def pad(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    return moved(recorder, equation, operands[:1], [_resized(recorder, equation, operands[0], 0)])


@rule("split")
def split(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Equal parts have the same new atom; the whole stays whole, because a PartitionSpec cannot say its parts."""
    shapes, by_size = [], {}
    for k, size in enumerate(equation.params["sizes"]):
        if size not in by_size:
            by_size[size] = _resized(recorder, equation, operands[0], k)
        shapes.append(by_size[size])
    return moved(recorder, equation, operands, shapes)


@rule("concatenate")
def concatenate(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Parts of one dim, joined to its old size, are that dim again (the two halves of rotary positions)."""
    axis, atoms = equation.params["dimension"], recorder.atoms
    first = operands[0].shape
    for array in operands[1:]:
        recorder.unify(_without(first, axis), _without(array.shape, axis))
    size = sizes(equation.outvars[0])[axis]
    wholes = {_whole(recorder, array.shape[axis]) for array in operands}
    whole = wholes.pop() if len(wholes) == 1 else None
    if whole is not None and atoms.elements(whole) == size:
        joined = whole
    else:
        joined = atoms.sequence(size, "concatenate")
        _remember(recorder, joined, max((array.shape[axis] for array in operands), key=atoms.elements))
    return moved(recorder, equation, operands, [recorder.distinct((*first[:axis], joined, *first[axis + 1 :]))])


@rule("stack")
def stack(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    for array in operands[1:]:
        recorder.unify(operands[0].shape, array.shape)
    shape = list(operands[0].shape)
    shape.insert(equation.params["axis"], recorder.atoms.sequence(len(operands), "stack"))
    return moved(recorder, equation, operands, [recorder.atoms.distinct(tuple(shape))[0]])


@rule("unstack")
def unstack(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    part = _without(operands[0].shape, equation.params["axis"])
    return moved(recorder, equation, operands, [part] * len(equation.outvars))


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _resized(recorder: Recorder, equation: Any, operand: Array, result: int) -> Shape:
    """The operand's shape with new atoms where the size changed."""
    before, after = sizes(equation.invars[0]), sizes(equation.outvars[result])
    out = []
    for sequence, old, size in zip(operand.shape, before, after, strict=True):
        if old == size:
            out.append(sequence)
        else:
            out.append(recorder.atoms.sequence(size, "cut"))
            _remember(recorder, out[-1], sequence)
    return recorder.atoms.distinct(tuple(out))[0]


def _remember(recorder: Recorder, new: DimIds, old: DimIds) -> None:
    """A dim that was cut or padded is named after the old one."""
    if new and old:
        recorder.parts[new[0]] = old


def _whole(recorder: Recorder, part: DimIds) -> DimIds | None:
    """The dim that a part was cut from; a part may have become one with other parts of equal size."""
    leaves = recorder.atoms.leaves(part)
    if len(leaves) != 1:
        return None
    for new, old in recorder.parts.items():
        if recorder.atoms.find(new) == leaves[0]:
            return recorder.atoms.leaves(old)
    return None
