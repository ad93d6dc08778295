"""Primitives that rearrange, cut and join. Those that only relabel (reshape, transpose) keep their operand's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule
from jaxplan.workload.table import DimIds, Shape


def moved(recorder: Recorder, equation: Any, operands: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
    """New values that hold (parts of) the operands' elements."""
    results = [
        recorder.add_value(variable.aval, shape) for variable, shape in zip(equation.outvars, shapes, strict=True)
    ]
    reads = [(array, array.shape) for array in operands if array.shape]
    widest = max((*shapes, *(array.shape for array in operands)), key=lambda s: recorder.atoms.elements(recorder.atoms.flat(s)))
    recorder.add_operation(equation.primitive.name, "move", reads, results, widest)
    return results


@rule("reshape")
def reshape(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Flatten and regroup the atoms; a cut inside an atom splits it everywhere."""
    shape = recorder.atoms.regroup(operands[0].shape, sizes(equation.outvars[0]))
    if shape is None:
        return recorder.uncover("reshape", equation.outvars)
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


@rule("copy", "copy_p", "optimization_barrier", "sharding_constraint", "layout_constraint", "pvary", "pcast", "reshard")
@rule("stop_gradient")
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
    """Equal parts cut the atom: a fused (2, mlp) dim falls apart into parts that are the same mlp."""
    parts, axis = equation.params["sizes"], equation.params["axis"]
    shape = operands[0].shape
    if len(set(parts)) == 1 and len(parts) > 1 and shape[axis]:
        cuts = recorder.atoms.regroup((shape[axis],), (len(parts), parts[0]))
        if cuts is not None:
            part = tuple(cuts[1] if i == axis else sequence for i, sequence in enumerate(shape))
            return moved(recorder, equation, operands, [part] * len(parts))
    shapes = [_resized(recorder, equation, operands[0], k) for k in range(len(parts))]
    return moved(recorder, equation, operands, shapes)


@rule("concatenate")
def concatenate(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Equal parts with the same atoms along the joined dim make (parts, atoms): the inverse of an equal split."""
    axis, atoms = equation.params["dimension"], recorder.atoms
    first = operands[0].shape
    for array in operands[1:]:
        recorder.unify(_without(first, axis), _without(array.shape, axis))
    joined = {atoms.leaves(array.shape[axis]) for array in operands}
    equal = len({sizes(variable) for variable in equation.invars}) == 1
    if equal and len(joined) == 1 and first[axis] and len(operands) > 1:
        parts = atoms.sequence(len(operands), "parts")
        shape = tuple((*parts, *sequence) if i == axis else sequence for i, sequence in enumerate(first))
    else:
        shape = (*first[:axis], atoms.sequence(sizes(equation.outvars[0])[axis], "concatenate"), *first[axis + 1 :])
        longest = max((array.shape[axis] for array in operands), key=atoms.elements)
        _remember(recorder, shape[axis], longest)
    return moved(recorder, equation, operands, [atoms.distinct(shape)[0]])


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
    """A dim that was shortened or lengthened by less than half is still named after the old one."""
    atoms = recorder.atoms
    if not new or not old:
        return
    sizes_ = sorted((atoms.elements(new), atoms.elements(atoms.leaves(old))))
    if 2 * sizes_[0] > sizes_[1]:
        recorder.strides[new[0]] = atoms.leaves(old)[0]
