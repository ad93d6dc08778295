"""The embedding lookup as one operation, on a mesh without ever moving the table.

Left to itself XLA gathers the table, or falls back to full rematerialization on three mesh axes. Here ids
travel instead: every device looks up all ids of its batch group in its own shard of the table (rows by
vocabulary, columns by `embed`). All-to-alls over the axes of `embed` turn columns into what they shard in the result:
first the context axis into a part of the sequence, the major one, last the batch axes into rows. Between, a
reduce-scatter over the vocabulary's axes leaves the minor part of the sequence (Shoeybi et al. 2019, arXiv:1909.08053,
section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). The gradient goes the same way back and stays
sharded like the table.
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
        local = rows if shards.manual else rows // shards.size(shards.vocab_axes)
        return named(
            "embed_backward",
            lambda ids, dx, shards=shards: shards.backward(ids, dx, local, kind),
            layout,
            (shards.ids, shards.stream),
            shards.gradient,
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
    """The lookup on local shards; every method runs where the axes are manual.

    Attributes:
        vocab_axes: that shard the table's rows, and the minor part of the sequence, if `scattered`.
        embed_axes: that shard the table's columns, major first: `context_axes` shard the major part of the sequence,
            the others, `row_axes`, the batch.
        other_axes: that shard the batch, but not the table; of them `kept_axes` shard its gradient (ZeRO-2).
    """

    def __init__(self, layout: Layout) -> None:
        self.size, self.manual = layout.size, layout.manual
        self.table, self.ids, self.stream = layout.spec(TABLE), layout.spec(IDS), layout.spec(STREAM)
        self.vocab_axes = layout.axes_of("vocab", TABLE)
        self.embed_axes = layout.axes_of("embed", TABLE)
        batch, seq = layout.axes_of("batch", STREAM), layout.axes_of("seq", STREAM)
        self.row_axes = tuple(a for a in self.embed_axes if a in batch)
        self.context_axes = tuple(a for a in self.embed_axes if a not in batch)
        self.other_axes = tuple(a for a in batch if a not in self.embed_axes)
        self.gradient = layout.gradient_spec(TABLE)
        kept = layout.gradient_axes_of("embed", TABLE)
        self.kept_axes = tuple(a for a in kept if a not in self.embed_axes)
        self.scattered = seq != self.context_axes
        if self.scattered and seq != (*self.context_axes, *self.vocab_axes):
            raise ValueError(
                f"seq must be sharded over {self.context_axes}, then like vocab ({self.vocab_axes}) or not at all, "
                f"got {seq}"
            )

    def local_rows(self, ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
        """Ids of all rows that these columns are for, as rows of the local table shard, and which of them lie in it."""
        if self.row_axes:
            ids = lax.all_gather(ids, self.row_axes, axis=0, tiled=True)
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
        out = _exchanged(out, self.context_axes, 1, 2)
        if self.vocab_axes and self.scattered:
            out = lax.psum_scatter(out, self.vocab_axes, scatter_dimension=1, tiled=True)
        elif self.vocab_axes:
            out = lax.psum(out, self.vocab_axes)
        out = _exchanged(out, self.row_axes, 0, 2)
        return self.transposed(out, (*self.row_axes, *self.context_axes), self.embed_axes)

    def backward(self, ids: jax.Array, dx: jax.Array, rows: int, dtype: DTypeLike) -> jax.Array:
        local, inside = self.local_rows(ids, rows)
        dx = self.transposed(dx, self.embed_axes, (*self.row_axes, *self.context_axes))
        dx = _exchanged(dx, self.row_axes, 2, 0)
        if self.vocab_axes and self.scattered:
            dx = lax.all_gather(dx, self.vocab_axes, axis=1, tiled=True)
        dx = _exchanged(dx, self.context_axes, 2, 1)
        dx = jnp.where(inside[..., None], dx.astype(dtype), 0)
        grad = jnp.zeros((rows, dx.shape[-1]), dtype).at[local].add(dx)
        if self.kept_axes:
            grad = lax.psum_scatter(grad, self.kept_axes, scatter_dimension=1, tiled=True)
        summed = tuple(axis for axis in self.other_axes if axis not in self.kept_axes)
        return lax.psum(grad, summed) if summed else grad

    def transposed(self, x: jax.Array, before: tuple[str, ...], after: tuple[str, ...]) -> jax.Array:
        """Columns that were put together from the axes `before`, in the order of the axes `after`, major first."""
        if before == after:
            return x
        parts = x.reshape(*x.shape[:2], *(self.size((axis,)) for axis in before), -1)
        order = [2 + before.index(axis) for axis in after]
        return parts.transpose(0, 1, *order, parts.ndim - 1).reshape(x.shape)


def _exchanged(x: jax.Array, axes: tuple[str, ...], split: int, joined: int) -> jax.Array:
    """Dimension `split` shared out over the axes, dimension `joined` put together from them."""
    return lax.all_to_all(x, axes, split_axis=split, concat_axis=joined, tiled=True) if axes else x
