"""Bytes that one instruction of a schedule reads and writes in main memory.

A fusion reads its operands and writes its results, but of an operand that is only sliced it reads the
slice, and of one that it updates in place it writes the update.
"""

from __future__ import annotations

from jaxplan.compile.collective_form import uses
from jaxplan.compile.hlo import Computation, Instruction, Module

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
    return _fusion_traffic(instruction, module.callee(instruction, "calls"))


def _fusion_traffic(fusion: Instruction, body: Computation) -> int:
    updated, total = _updates(body)
    for instruction in body.instructions:
        if instruction.opcode == "parameter" and instruction.name not in updated:
            total += _read(instruction)
    return max(0, total + fusion.nbytes)


def _updates(body: Computation) -> tuple[set[str], int]:
    """Parameters updated in place, and the bytes that this saves (negative): only the update is written."""
    names: set[str] = set()
    saved = 0
    for instruction in body.instructions:
        if instruction.opcode != "dynamic-update-slice":
            continue
        source = instruction.operand(0)
        while source.opcode in _SAME:
            source = source.operand(0)
        if source.opcode == "parameter":
            names.add(source.name)
            saved += instruction.operand(1).nbytes - instruction.nbytes
    return names, saved


def _read(parameter: Instruction) -> int:
    """Bytes that a fusion reads of one parameter: all, or the slices that it takes."""
    found = uses(parameter)
    if found and all(user.opcode in _SLICES and position == 0 for user, position in found):
        return min(parameter.nbytes, sum(user.nbytes for user, _ in found))
    return parameter.nbytes
