"""The embedding lookup as one operation, on a mesh without ever moving the table.

Left to itself XLA gathers the table, or falls back to full rematerialization on three mesh axes. Here ids
travel instead: every device looks up all ids of its batch group in its own shard of the table (rows by
vocabulary, columns by `embed`), a reduce-scatter over the vocabulary's axes turns that into a shard of the
sequence (Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section
4.2.2), and an all-to-all over the axes of `embed` turns columns into sequences. The gradient goes the same
way back and stays sharded like the table.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jaxplan.workload.kernels.calls import named
from jaxplan.workload.layout import Layout

TABLE = ("vocab", "embed")
IDS = ("batch", "")
STREAM = ("batch", "seq", "embed")

Lookup = Callable[[jax.Array, jax.Array], jax.Array]


def lookup(dtype: DTypeLike, layout: Layout | None = None) -> Lookup:
    """Differentiable table (V, D), ids (B, S) -> (B, S, D) in `dtype`.

    The table's gradient is accumulated and returned in the table's own dtype.
    """

    def plain(table: jax.Array, ids: jax.Array) -> jax.Array:
        return table[ids].astype(dtype)

    shards = None if layout is None else _Shards(layout)
    if shards is None:
        forward = named("embed_forward", plain)
    else:
        forward = named(
            "embed_forward",
            lambda t, i: shards.forward(t, i, dtype),
            layout,
            (shards.table, shards.ids),
            shards.stream,
        )

    def backward(table: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
        rows, width, kind = table.shape[0], table.shape[1], table.dtype
        if shards is None:
            return named(
                "embed_backward", lambda ids, dx: jnp.zeros((rows, width), kind).at[ids].add(dx.astype(kind))
            )
        local = rows // shards.size(shards.vocab_axes)
        return named(
            "embed_backward",
            lambda ids, dx, shards=shards: shards.backward(ids, dx, local, kind),
            layout,
            (shards.ids, shards.stream),
            shards.table,
        )

    @jax.custom_vjp
    def embed(table: jax.Array, ids: jax.Array) -> jax.Array:
        return forward(table, ids)

    def embed_forward(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple]:
        # the table itself is kept only for its shape and dtype; nothing reads it in the backward pass
        return forward(table, ids), (table, ids)

    def embed_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, np.ndarray]:
        table, ids = residuals
        return backward(table)(ids, cotangent), np.zeros(ids.shape, jax.dtypes.float0)

    embed.defvjp(embed_forward, embed_backward)
    return embed


class _Shards:
    """The lookup on local shards; every method runs inside shard_map."""

    def __init__(self, layout: Layout) -> None:
        self.size = layout.size
        self.table, self.ids, self.stream = layout.spec(TABLE), layout.spec(IDS), layout.spec(STREAM)
        self.vocab_axes = layout.axes_of("vocab", TABLE)
        self.embed_axes = layout.axes_of("embed", TABLE)
        self.seq_axes = layout.axes_of("seq", STREAM)
        self.data_axes = tuple(a for a in layout.axes_of("batch", STREAM) if a not in self.embed_axes)
        if self.seq_axes and self.seq_axes != self.vocab_axes:
            raise ValueError(
                f"seq must be sharded like vocab ({self.vocab_axes}) or not at all, got {self.seq_axes}"
            )

    def local_rows(self, ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
        """Ids of the whole `embed` group as rows of the local table shard, and which of them lie in it."""
        if self.embed_axes:
            ids = lax.all_gather(ids, self.embed_axes, axis=0, tiled=True)
        if not self.vocab_axes:
            return ids, jnp.ones(ids.shape, bool)
        local = ids - lax.axis_index(self.vocab_axes) * rows
        inside = (local >= 0) & (local < rows)
        return jnp.where(inside, local, 0), inside

    def forward(self, table: jax.Array, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        local, inside = self.local_rows(ids, table.shape[0])
        out = table[local].astype(dtype)
        if self.vocab_axes:
            out = jnp.where(inside[..., None], out, 0)
            if self.seq_axes:
                out = lax.psum_scatter(out, self.vocab_axes, scatter_dimension=1, tiled=True)
            else:
                out = lax.psum(out, self.vocab_axes)
        if self.embed_axes:
            out = lax.all_to_all(out, self.embed_axes, split_axis=0, concat_axis=2, tiled=True)
        return out

    def backward(self, ids: jax.Array, dx: jax.Array, rows: int, dtype: DTypeLike) -> jax.Array:
        local, inside = self.local_rows(ids, rows)
        if self.embed_axes:
            dx = lax.all_to_all(dx, self.embed_axes, split_axis=2, concat_axis=0, tiled=True)
        if self.seq_axes:
            dx = lax.all_gather(dx, self.seq_axes, axis=1, tiled=True)
        dx = jnp.where(inside[..., None], dx.astype(dtype), 0)
        grad = jnp.zeros((rows, dx.shape[-1]), dtype).at[local].add(dx)
        return lax.psum(grad, self.data_axes) if self.data_axes else grad
