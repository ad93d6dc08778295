"""How a kernel is called: as a jit with a known name, and in an automatic layout under a fully manual shard_map.

A kernel's devices see local arrays and say themselves what they exchange, so its collectives are known
beforehand. The names (`jaxplan_attention_forward`, ...) let an analyser price the call as one operation
instead of entering it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jaxplan.workload.layout import Layout

PREFIX = "jaxplan_"


def kept(value: jax.Array, name: str) -> jax.Array:
    """A value (B, S, N, H) that checkpoints can keep by its name, (B, S, N H) as long as they do.

    Heads narrower than a TPU's 128 lanes are padded to them where they are a stacked residual's last dim.
    """
    flat = checkpoint_name(value.reshape(*value.shape[:-2], -1), name)
    return flat.reshape(value.shape)


def named(
    name: str,
    function: Callable[..., Any],
    layout: Layout | None = None,
    in_specs: Sequence[PartitionSpec] = (),
    out_specs: Any = None,
) -> Callable[..., Any]:
    """`function` as a jit named `jaxplan_<name>`; with a layout, over all of its mesh's axes manually.

    Where the layout is manual the arrays are local shards already.
    """
    inner = function
    if layout is not None and not layout.manual:
        inner = layout.mapped(function, tuple(in_specs), out_specs)

    def call(*operands: Any) -> Any:
        return inner(*operands)

    call.__name__ = call.__qualname__ = PREFIX + name
    return jax.jit(call)
