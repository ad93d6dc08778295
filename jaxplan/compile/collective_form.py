"""The forms compilers give a collective: starts and steps of one, slices, widened types."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jaxplan.compile.hlo import Computation, Instruction, Module

KINDS = frozenset(
    (
        "all-gather",
        "all-reduce",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
        "collective-broadcast",
        "ragged-all-to-all",
    )
)
_ALIASES = frozenset(("bitcast", "reshape", "copy", "transpose"))


def base_kind(opcode: str) -> str:
    """`all-gather` for `all-gather` and `all-gather-start`; other opcodes as they are."""
    return opcode.removesuffix("-start")


def async_key(instruction: Instruction) -> object | None:
    """What a TPU collective inside a fusion shares with the fusions that start, advance and end it.

    None for a collective that is no part of such a chain. Chains are told apart by `chain_id` where it is
    printed, otherwise by channel.
    """
    if "async_collective_fusion_config" not in instruction.attribute_text:
        return None
    chain = instruction.quoted("chain_id") or instruction.quoted("async_collective_name")
    return (base_kind(instruction.opcode), chain or f"channel {instruction.channel_id}")


def is_sliced_all_reduce(instruction: Instruction) -> bool:
    """Whether an all-reduce inside a TPU's fusion feeds slices only: that compiler's reduce-scatter."""
    uses = [user for user, _ in uses_of_array(instruction, None)]
    uses += [
        user for one in uses if one.opcode == "get-tuple-element" for user, _ in uses_of_array(one, None)
    ]
    ends = [user for user in uses if user.opcode != "get-tuple-element"]
    return bool(ends) and all(user.opcode == "dynamic-slice" for user in ends)


def slices_of(module: Module, instruction: Instruction, index: int | None) -> int:
    """Into how many parts every user cuts array `index` of a result (None: the only array)."""
    uses = list(_final_uses(module, instruction, index, _ALIASES | {"convert"}))
    if not all(user.opcode == "dynamic-slice" and position == 0 for user, position in uses):
        return 1
    ways = {user.operand(0).shape.elements // user.shape.elements for user, _ in uses}
    return ways.pop() if len(ways) == 1 else 1


def rounded_to_bf16(module: Module, instruction: Instruction, index: int | None) -> bool:
    """Whether every user of array `index` of a result in float32 rounds it to bfloat16 first."""
    if instruction.shapes[index or 0].dtype != "f32":
        return False
    uses = list(_final_uses(module, instruction, index, _ALIASES | {"dynamic-slice"}))
    return bool(uses) and all(user.opcode == "convert" and user.shape.dtype == "bf16" for user, _ in uses)


def widened_from_bf16(module: Module, operand: Instruction) -> bool:
    """Whether a float32 operand is a bfloat16 value that was only converted."""
    source = operand
    while source.opcode in _ALIASES or source.opcode == "fusion":
        root = module.callee(source, "calls").root if source.opcode == "fusion" else source.operand(0)
        if root is None:
            return False
        source = root
    return source.opcode == "convert" and source.operand(0).shape.dtype == "bf16"


def sum_of(module: Module, instruction: Instruction, index: int) -> str:
    """The addition in which array `index` of a result ends, as computation/name; empty where used elsewhere.

    Arrays of one all-reduce that end in one addition could be added first and reduced as one (XLA's
    accelerator pipelines do so: AllReduceReassociate; the CPU's does not).
    """
    end, at = instruction, index
    through = _ALIASES | {"convert", "dynamic-slice"}
    found = ""
    while True:
        uses = list(_final_uses(module, end, at if end is instruction else None, through))
        if len(uses) != 1 or uses[0][0].opcode != "add":
            return found
        end = uses[0][0]
        found = f"{end.computation.name}/{end.name}"


@lru_cache(maxsize=64)
def _users(computation: Computation) -> dict[str, list[tuple[Instruction, int]]]:
    users: dict[str, list[tuple[Instruction, int]]] = {}
    for instruction in computation.instructions:
        for position, name in enumerate(instruction.operand_names):
            users.setdefault(name, []).append((instruction, position))
    return users


def uses(instruction: Instruction) -> list[tuple[Instruction, int]]:
    """(user, operand position) of a result, in its computation, seen through bitcasts."""
    found: list[tuple[Instruction, int]] = []
    for user, position in uses_of_array(instruction, None):
        found += uses(user) if user.opcode == "bitcast" else [(user, position)]
    return found


def uses_of_array(instruction: Instruction, index: int | None) -> list[tuple[Instruction, int]]:
    """(user, operand position) of array `index` of a result, in its computation."""
    users = _users(instruction.computation)
    uses = users.get(instruction.name, [])
    if index is None:
        return uses
    chosen = [
        user
        for user, _ in uses
        if user.opcode == "get-tuple-element" and user.attribute("index") == str(index)
    ]
    return [use for one in chosen for use in users.get(one.name, ())]


def _final_uses(
    module: Module,
    instruction: Instruction,
    index: int | None,
    through: frozenset[str],
    callers: tuple[Instruction, ...] = (),
) -> Iterator[tuple[Instruction, int]]:
    """(user, operand position) of a value, followed through `through`, into fusions and out again."""
    if instruction.is_root and callers:
        yield from _final_uses(module, callers[-1], None, through, callers[:-1])
    for user, position in uses_of_array(instruction, index):
        if user.opcode in through and position == 0:
            yield from _final_uses(module, user, None, through, callers)
        elif user.opcode == "fusion":
            inner = module.callee(user, "calls").parameter(position)
            yield from _final_uses(module, inner, None, through, (*callers, user))
        elif user.opcode == "tuple" and user.is_root and callers:
            yield from _final_uses(module, callers[-1], position, through, callers[:-1])
        else:
            yield user, position
