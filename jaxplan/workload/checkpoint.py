"""A rematerialization policy as JAX's checkpoint takes it: what the backward pass finds and what it makes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxplan.plan.remat import POLICIES
from jaxplan.workload.shape import ModelShape
from jaxplan.workload.weights import block_dims, dim_sizes

Keep = Callable[..., Any]


def checkpoint_policy(name: str, shape: ModelShape, on_mesh: bool) -> Keep | None:
    """What the blocks' checkpoint keeps under the policy of that name; None: no checkpoint."""
    saved = POLICIES[name].saved
    if saved is not None:
        return jax.checkpoint_policies.save_only_these_names(*sorted(saved))
    if not on_mesh:
        return None
    sizes = dim_sizes(shape)
    dims = block_dims(shape).values()
    return _all_but_weights(frozenset(tuple(sizes[dim or ""] for dim in names) for names in dims))


def _all_but_weights(shapes: frozenset[tuple[int, ...]]) -> Callable[..., bool]:
    """Keeps every value but weights as they are computed with, which have these shapes.

    A cast or gathered weight that is kept for the backward pass, of every layer, would undo its sharding.
    """

    def keep(primitive: Any, *values: Any, **_: Any) -> bool:
        of_weight = bool(values) and getattr(values[0], "shape", None) in shapes
        return not (of_weight and primitive.name in ("convert_element_type", "sharding_constraint"))

    return keep
