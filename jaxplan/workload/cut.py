"""What a rematerialization policy keeps and does again, read off a table that was traced without one. No JAX here.

`jax.checkpoint` around each block with `save_only_these_names` keeps the block's input and the tagged values, and runs
again in the backward pass whatever is needed to get from them to the values that the backward pass reads. That is a
backward slice of the forward program (the recomputation of Chen et al. 2016, arXiv:1604.06174, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxplan.plan.remat import BLOCK_INPUT, NOTHING, ROUTE, Policy
from jaxplan.workload.table import Table

LAYERS = "layers"


@dataclass(frozen=True)
class Cut:
    """What is kept between the forward and the backward pass, and what is done twice.

    Where one input is kept in `group` layers, the backward pass of a group begins with one more forward pass through
    the group (`again`), which keeps `inside` of each of its layers until their backward pass is done.

    Attributes:
        saved: ids of values that are kept, inside and outside of the loop over layers.
        recomputed: indices of the forward operations that a block's backward pass runs again, in program order.
        offloaded: those of `saved` that are kept in the host's memory.
        group: layers between two inputs that are kept.
        inside: ids of values that are kept of each of a group's layers, while one group is gone through.
        again: indices of the forward operations that a group runs once more, in program order.
    """

    saved: tuple[int, ...]
    recomputed: tuple[int, ...]
    offloaded: tuple[int, ...] = ()
    group: int = 1
    inside: tuple[int, ...] = ()
    again: tuple[int, ...] = ()

    def copies(self, table: Table, value: int) -> int:
        """How many of a saved value there are when the forward pass is over."""
        copies = table.values[value].copies
        # a router's choices bear a tag and are kept of every layer, inputs bear none
        return copies // self.group if copies > 1 and not table.values[value].tag else copies

    @property
    def on_device(self) -> tuple[int, ...]:
        """The saved values that stay in the device's memory."""
        return tuple(value for value in self.saved if value not in self.offloaded)


def policy_cut(table: Table, policy: Policy) -> Cut:
    """The cut of a policy."""
    if policy.group > 1:
        return _cut_of_groups(table, policy)
    if policy.saved is None:
        return cut(table, None)
    found = cut(table, policy.saved | policy.offloaded)
    offloaded = {value for value in found.saved if table.values[value].tag in policy.offloaded}
    if BLOCK_INPUT in policy.offloaded:
        offloaded |= _inputs(table, found.saved)
    return Cut(found.saved, found.recomputed, tuple(sorted(offloaded)))


def _cut_of_groups(table: Table, policy: Policy) -> Cut:
    saved, block = cut(table, NOTHING).saved, cut(table, policy.inside)
    tagged = {value for value in saved if table.values[value].tag}
    inside = tuple(value for value in block.saved if table.values[value].copies > 1 and value not in tagged)
    again = tuple(i for i, op in enumerate(table.operations) if op.phase == "forward" and LAYERS in op.scope)
    return Cut(saved, block.recomputed, group=policy.group, inside=inside, again=again)


def _inputs(table: Table, saved: Iterable[int]) -> set[int]:
    """The inputs of blocks: what the loop over layers carries, which no operation makes."""
    made = {value for operation in table.operations for value in operation.writes}
    return {value for value in saved if table.values[value].copies > 1 and value not in made}


def cut(table: Table, saved_tags: frozenset[str] | None) -> Cut:
    """The cut of a policy that keeps the values with these tags; None keeps every residual.

    Parameters are never kept: they are there. Values made outside of the loop over layers are kept if they are read.
    """
    if saved_tags is None:
        return Cut(table.residuals, ())
    kept = {*saved_tags, ROUTE}
    producer = {
        value: index
        for index, operation in enumerate(table.operations)
        if operation.phase == "forward" and LAYERS in operation.scope
        for value in operation.writes
    }
    saved: set[int] = set()
    recomputed: set[int] = set()
    seen: set[int] = set()
    stack = list(table.residuals)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value not in producer or table.values[value].tag in kept:
            if table.values[value].kind == "intermediate":
                saved.add(value)
            continue
        operation = table.operations[producer[value]]
        recomputed.add(producer[value])
        stack.extend(read.value for read in operation.reads)
    return Cut(tuple(sorted(saved)), tuple(sorted(recomputed)))
