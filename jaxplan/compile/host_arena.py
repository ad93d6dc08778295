"""Bytes that a CPU program takes anew from the system at every start: its temporaries and results. No JAX here.

XLA's CPU runtime allocates one block for the temporaries of an execution and gives it back afterwards; the kernel
clears its pages when they are touched first. Blocks under `KEPT_BYTES` the C library keeps for the next execution. How
large the block is follows from which values are alive at once: values that only name others (tuples, bitcasts, loops
that carry them, updates in place) have no buffer of their own, and results that take the place of donated arguments
(`input_output_alias`) lie in those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from jaxplan.compile.hlo import Computation, Instruction, Module
from jaxplan.compile.memory_traffic import memory_traffic

_NAMES = frozenset(("tuple", "get-tuple-element", "bitcast", "while", "optimization-barrier", "opt-barrier", "call"))
_WITHOUT = frozenset(("parameter", "constant", "after-all", "partition-id", "replica-id"))
_ALIAS = re.compile(r"\{(\d*)\}: \(\d+, ")     # of the header: which result, of which argument

#: glibc maps larger blocks anew each time; up to here its threshold grows with what is freed (mallopt(3),
#: M_MMAP_THRESHOLD: DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems).
KEPT_BYTES = 32 * 2**20


def fresh_bytes(module: Module) -> int:
    """Bytes that one execution takes anew: its block, unless that is small enough to be kept."""
    block = block_bytes(module)
    return block if block > KEPT_BYTES else 0


def block_bytes(module: Module) -> int:
    """The most bytes of temporaries and results that are alive at once."""
    return _peak(module, module.entry, {}, _donated(module))


def _donated(module: Module) -> dict[str, int]:
    """By instruction, bytes of its result that take the place of a donated argument."""
    root, found = module.entry.root, {}
    for index in _ALIAS.findall(module.header.partition("input_output_alias=")[2]):
        if root is None or bool(index) != (root.opcode == "tuple"):
            continue
        result = value = root.operand(int(index)) if index else root
        while value.opcode in ("bitcast", "get-tuple-element"):
            value = value.operand(0)
        if not _only_names(module, value):
            found[value.name] = min(value.nbytes, found.get(value.name, 0) + result.nbytes)
    return found


def _peak(module: Module, computation: Computation, known: dict[str, int], donated: Mapping[str, int]) -> int:
    """The most bytes alive at once in one execution of a computation, beside its arguments."""
    if computation.name in known:
        return known[computation.name]
    holds: dict[str, frozenset[str]] = {}       # value -> the values whose buffers it names
    last: dict[str, int] = {}
    for place, one in enumerate(computation.instructions):
        read = frozenset().union(*(holds.get(name, frozenset()) for name in one.operand_names))
        last.update(dict.fromkeys(read, place))
        holds[one.name] = read if _only_names(module, one) else _own(one)
    if computation.root is not None:
        last.update(dict.fromkeys(holds[computation.root.name], len(computation.instructions)))
    alive, most, ends = 0, 0, _by_end(last)
    for place, one in enumerate(computation.instructions):
        own = 0 if _only_names(module, one) or not _own(one) else one.nbytes - donated.get(one.name, 0)
        alive += own
        inner = max((_peak(module, called, known, {}) for called in _called(module, one)), default=0)
        most = max(most, alive + inner)
        if own and one.name not in last:
            alive -= own        # nobody reads it
        alive -= sum(computation.instruction(name).nbytes - donated.get(name, 0) for name in ends.get(place, ()))
    known[computation.name] = most
    return most


def _own(one: Instruction) -> frozenset[str]:
    return frozenset() if one.opcode in _WITHOUT else frozenset((one.name,))


def _only_names(module: Module, one: Instruction) -> bool:
    """Whether a value has no buffer of its own: a name for others, or an array that is updated in place."""
    if one.opcode in _NAMES or one.opcode == "dynamic-update-slice":
        return True
    updates = one.opcode == "fusion" and "dynamic-update-slice" in one.name
    return updates and memory_traffic(module, one) < one.nbytes


def _by_end(last: dict[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, place in last.items():
        found.setdefault(place, []).append(name)
    return found


def _called(module: Module, one: Instruction) -> Iterable[Computation]:
    """Computations whose buffers live beside those of the caller."""
    roles = {"while": ("body",), "call": ("to_apply", "calls"), "conditional": ("branches",)}.get(one.opcode, ())
    for role in roles:
        yield from (module.computation(name) for name in one.called.get(role, ()))
