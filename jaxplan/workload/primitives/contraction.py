"""Matrix multiplications: dot_general and its ragged (grouped) form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule


@rule("dot_general")
def dot_general(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Result dims: batch, then left free, then right free. FLOPs: 2 x result elements x contracted elements.

    An atom that is free on both sides (the sequence in attention's scores) is read as its copy on the right.
    """
    atoms = recorder.atoms
    (left_contracted, right_contracted), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = operands[0].shape, operands[1].shape
    recorder.unify(
        tuple(left[i] for i in (*left_contracted, *left_batch)),
        tuple(right[i] for i in (*right_contracted, *right_batch)),
    )
    left_free = [i for i in range(len(left)) if i not in (*left_contracted, *left_batch)]
    right_free = [i for i in range(len(right)) if i not in (*right_contracted, *right_batch)]
    taken = set(atoms.flat([left[i] for i in left_free] + [right[i] for i in right_free]))
    contracted = tuple(
        atoms.agree(left[i], right[j], taken) for i, j in zip(left_contracted, right_contracted, strict=True)
    )
    free = [left[i] for i in (*left_batch, *left_free)] + [right[i] for i in right_free]
    whole = recorder.distinct((*free, *contracted))
    out, contracted = whole[: len(free)], whole[len(free) :]

    as_left, as_right = list(left), list(right)
    for i, j, sequence in zip(left_contracted, right_contracted, contracted, strict=True):
        as_left[i] = as_right[j] = sequence
    for i, j, sequence in zip(left_batch, right_batch, out, strict=False):
        as_left[i] = as_right[j] = sequence
    for i, sequence in zip(left_free, out[len(left_batch) :], strict=False):
        as_left[i] = sequence
    for i, sequence in zip(right_free, out[len(left_batch) + len(left_free) :], strict=True):
        as_right[i] = sequence

    depth = math.prod(sizes(equation.invars[0])[i] for i in left_contracted)
    result = recorder.add_value(equation.outvars[0].aval, atoms.restore(out))
    recorder.contracted[recorder.place.path] = contracted
    recorder.add_operation(
        "dot_general",
        "matmul",
        [(operands[0], tuple(as_left)), (operands[1], tuple(as_right))],
        [result],
        whole,
        contracted,
        2.0 * elements(equation.outvars[0]) * depth,
    )
    return [result]


@rule("ragged_dot_general")
def ragged_dot_general(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """A matmul whose rows belong to groups. FLOPs: every row meets one group's matrix, whatever the group's size.

    With ragged rows the right side has a group dim that the result lacks; with a ragged contraction (the weights'
    gradient) the result has a leading group dim.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (left_contracted, right_contracted), (left_batch, right_batch) = numbers.dot_dimension_numbers
    left, right, groups = (operand.shape for operand in operands[:3])
    recorder.unify(
        tuple(left[i] for i in (*left_contracted, *left_batch)),
        tuple(right[i] for i in (*right_contracted, *right_batch)),
    )
    group_dims = tuple(numbers.rhs_group_dimensions)
    contracted = tuple(left[i] for i in left_contracted)
    out = [left[i] for i in left_batch]
    out += [left[i] for i in range(len(left)) if i not in (*left_contracted, *left_batch)]
    out += [right[i] for i in range(len(right)) if i not in (*right_contracted, *right_batch, *group_dims)]
    group = tuple(right[i] for i in group_dims)
    depth = math.prod(sizes(equation.invars[0])[i] for i in left_contracted)
    flops = 2.0 * elements(equation.outvars[0]) * depth
    if group:
        recorder.unify(group, (groups[-1],))
    else:
        out.insert(0, groups[-1])
        flops /= sizes(equation.invars[2])[-1]
    whole = recorder.distinct((*out, *contracted, *group))
    result = recorder.add_value(equation.outvars[0].aval, whole[: len(out)])
    recorder.add_operation(
        "ragged_dot_general",
        "matmul",
        [(operands[0], left), (operands[1], right)],
        [result],
        whole,
        whole[len(out) :],
        flops,
    )
    return [result]
