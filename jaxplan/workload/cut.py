"""What a rematerialization policy keeps, read off a table that was traced without one. No JAX here.

`jax.checkpoint` around each block with `save_only_these_names` keeps the block's input and the tagged values, and runs
again in the backward pass whatever is needed to get from them to the values that the backward pass reads. That is a
backward slice of the forward program (the recomputation of Chen et al. 2016, arXiv:1604.06174, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.workload.table import Table

LAYERS = "layers"


@dataclass(frozen=True)
class Cut:
    """What is kept between the forward and the backward pass, and what is done twice.

    Attributes:
        saved: ids of values that are kept, inside and outside of the loop over layers.
        recomputed: indices of the forward operations that the backward pass runs again, in program order.
    """

    saved: tuple[int, ...]
    recomputed: tuple[int, ...]


def cut(table: Table, saved_tags: frozenset[str] | None) -> Cut:
    """The cut of a policy that keeps the values with these tags; None keeps every residual.

    Parameters are never kept: they are there. Values made outside of the loop over layers are kept if they are read.
    """
    if saved_tags is None:
        return Cut(table.residuals, ())
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
        if value not in producer or table.values[value].tag in saved_tags:
            if table.values[value].kind == "intermediate":
                saved.add(value)
            continue
        operation = table.operations[producer[value]]
        recomputed.add(producer[value])
        stack.extend(read.value for read in operation.reads)
    return Cut(tuple(sorted(saved)), tuple(sorted(recomputed)))
