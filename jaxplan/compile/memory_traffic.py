"""Bytes that one instruction of a schedule reads and writes in main memory.

A fusion reads its operands and writes its results, but of an operand that is only sliced it reads the
slice, and of one that it updates in place it writes the update. Fusions may hold fusions.
"""

from __future__ import annotations

from jaxplan.compile.collective_form import uses
from jaxplan.compile.hlo import Instruction, Module

# Nothing is moved: names for values, constants, and what a compiler folds away.
FREE = frozenset(
    (
        "after-all",
        "add-dependency",
        "bitcast",
        "constant",
        "domain",
        "get-tuple-element",
        "iota",
        "opt-barrier",
        "optimization-barrier",
        "parameter",
        "partition-id",
        "recv",
        "replica-id",
        "tuple",
    )
)
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_SAME = frozenset(("bitcast", "convert", "copy", "reshape"))


def memory_traffic(module: Module, instruction: Instruction) -> int:
    """Bytes read and written by one execution of `instruction`; 0 for what moves nothing."""
    if instruction.opcode in FREE:
        return 0
    if instruction.opcode in _SLICES:
        return 2 * instruction.nbytes
    if instruction.opcode == "dynamic-update-slice":
        return 2 * instruction.operand(1).nbytes
    if instruction.opcode != "fusion":
        return instruction.nbytes + sum(operand.nbytes for operand in instruction.operands)
    body = module.callee(instruction, "calls")
    read = sum(_read(module, one) for one in body.instructions if one.opcode == "parameter")
    return read + _written(module, _root(module, instruction))


def _read(module: Module, value: Instruction) -> int:
    """Bytes that a computation reads of one value: all, or the slices that it takes; none of what it updates in place.

    Inside of a fusion a copy or a conversion is no pass over memory: what is read is what is read of its result.
    """
    total = 0
    for user, position in uses(value):
        if user.opcode in _SLICES and position == 0:
            total += user.nbytes
        elif user.opcode == "dynamic-update-slice" and position == 0:
            continue
        elif _only_renames(module, user) and not user.is_root:
            total += _read(module, user) * value.nbytes // max(user.nbytes, 1)
        elif user.opcode == "fusion" and not _only_renames(module, user):
            total += _read(module, module.callee(user, "calls").parameter(position))
        else:
            return value.nbytes
    return min(total, value.nbytes)


def _written(module: Module, root: Instruction) -> int:
    """Bytes of a computation's results that are written: of an array that is updated in place, the update."""
    if root.opcode == "tuple":
        return sum(_written(module, operand) for operand in root.operands)
    if root.opcode == "dynamic-update-slice":
        return root.operand(1).nbytes if _is_argument(module, root.operand(0)) else root.nbytes
    if _only_renames(module, root):
        inner = root.operand(0)
        return root.nbytes if inner.opcode == "parameter" else min(root.nbytes, _written(module, inner))
    if root.opcode == "fusion":
        return _written(module, _root(module, root))
    return root.nbytes


def _is_argument(module: Module, value: Instruction) -> bool:
    while _only_renames(module, value):
        value = value.operand(0)
    return value.opcode == "parameter"


def _only_renames(module: Module, value: Instruction) -> bool:
    """Whether a value is another one in another layout or dtype: a copy, or a fusion of nothing else."""
    if value.opcode in _SAME:
        return True
    if value.opcode != "fusion" or len(value.operand_names) != 1:
        return False
    inner = _root(module, value)
    while inner.opcode in _SAME:
        inner = inner.operand(0)
    return inner.opcode == "parameter"


def _root(module: Module, fusion: Instruction) -> Instruction:
    return next(one for one in module.callee(fusion, "calls").instructions if one.is_root)
