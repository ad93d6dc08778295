"""How often a loop runs: from the count that the compiler recorded, or from the loop's own condition.

CPU and GPU modules carry `known_trip_count` in the backend config of each `while`. TPU modules do not:
their condition compares an induction variable with a constant, and start and step stand in the loop's first
tuple and in its body.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.compile.hlo import Instruction, Module

_TRANSPARENT = frozenset(
    ("copy", "convert", "bitcast", "reshape", "copy-done", "copy-start", "optimization-barrier")
)
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True, slots=True)
class TripCount:
    """How often a loop's body runs.

    Attributes:
        count: None where it depends on data or is written in a way that is not understood.
        known_from: `recorded`, `condition`, or why it is not known.
    """

    count: int | None
    known_from: str


@dataclass(frozen=True, slots=True)
class _Value:
    """A scalar of a loop's condition: a constant, or element `index` of the loop's tuple."""

    constant: int | None = None
    index: int | None = None


def trip_count(module: Module, loop: Instruction) -> TripCount:
    """The trip count of the `while` instruction `loop`."""
    recorded = loop.config.get("known_trip_count")
    if isinstance(recorded, dict) and "n" in recorded:
        return TripCount(int(recorded["n"]), "recorded")
    compared = _comparison(module, loop)
    if compared is None:
        return TripCount(None, "the condition is not a comparison of a counter with a number")
    left, right, direction = compared
    if left.index is None:
        left, right, direction = right, left, _MIRRORED[direction]
    if left.index is None or direction not in _MIRRORED:
        return TripCount(None, "the condition compares no counter")
    start = _initial(loop, left.index)
    bound = right.constant if right.index is None else _initial(loop, right.index)
    step = _step(module, loop, left.index)
    if start is None or bound is None or not step:
        what = "start" if start is None else "bound" if bound is None else "step"
        return TripCount(None, f"the counter's {what} is not a constant")
    return _count(start, bound, step, direction)


def _count(start: int, bound: int, step: int, direction: str) -> TripCount:
    span = bound - start if step > 0 else start - bound
    span += direction in ("LE", "GE")
    upward = direction in ("LT", "LE")
    if direction != "NE" and upward != (step > 0):
        return TripCount(None, "the counter runs away from its bound")
    return TripCount(max(0, -(-span // abs(step))), "condition")


def _comparison(module: Module, loop: Instruction) -> tuple[_Value, _Value, str] | None:
    """Both sides and the direction of the comparison at the root of the loop's condition."""
    root = module.callee(loop, "condition").root
    outer: Instruction | None = None
    if root is not None and root.opcode in ("fusion", "call"):
        outer, root = root, module.callee(root, "calls", "to_apply").root
    if root is None or root.opcode != "compare":
        return None
    sides = [_condition_value(root.operand(index), outer) for index in (0, 1)]
    left, right = sides
    direction = root.attribute("direction")
    return None if left is None or right is None or direction is None else (left, right, direction)


def _condition_value(instruction: Instruction, outer: Instruction | None) -> _Value | None:
    constant = _constant(instruction)
    if constant is not None:
        return _Value(constant=constant)
    instruction = _through(instruction)
    if instruction.opcode == "parameter" and outer is not None:
        return _condition_value(outer.operand(int(instruction.operand_text)), None)
    if instruction.opcode == "get-tuple-element":
        return _Value(index=int(instruction.attribute("index") or 0))
    return None


def _through(instruction: Instruction) -> Instruction:
    while instruction.opcode in _TRANSPARENT and instruction.operand_names:
        instruction = instruction.operand(0)
    return instruction


def _constant(instruction: Instruction) -> int | None:
    instruction = _through(instruction)
    if instruction.opcode != "constant":
        return None
    try:
        return int(instruction.operand_text)
    except ValueError:
        return None


def _initial(loop: Instruction, index: int) -> int | None:
    """The constant that element `index` of the loop's tuple starts with."""
    start = _through(loop.operand(0))
    return _constant(start.operand(index)) if start.opcode == "tuple" else None


def _step(module: Module, loop: Instruction, index: int) -> int | None:
    """What one trip adds to element `index` of the loop's tuple."""
    root = module.callee(loop, "body").root
    root = _through(root) if root is not None else None
    if root is None or root.opcode != "tuple":
        return None
    update = _through(root.operand(index))
    outer: Instruction | None = None
    if update.opcode == "fusion":
        result = module.callee(update, "calls").root
        outer, update = update, _through(result) if result is not None else update
    if update.opcode not in ("add", "subtract"):
        return None
    sign = 1 if update.opcode == "add" else -1
    for side in update.operands[::-1]:
        side = _through(side)
        if side.opcode == "parameter" and outer is not None:
            side = outer.operand(int(side.operand_text))
        constant = _constant(side)
        if constant is not None:
            return sign * constant
    return None
