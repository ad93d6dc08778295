"""Softmax cross-entropy with the output projection as one operation: logits exist for one chunk of tokens at a time.

Each device holds a shard of the vocabulary and exchanges only the maximum and the sum of every token (Shoeybi et al. 2019,
arXiv:1909.08053, section 3). The weight is gathered over the axes of `embed` once in each direction, in the compute dtype;
the backward pass makes each chunk's logits again and adds up the weight's gradient locally in float32, so that the
gradient travels once. Arithmetic of the softmax is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.workload.kernels.calls import named
from jaxplan.workload.layout import Layout

STREAM = ("batch", "seq", "embed")
TARGETS = ("batch", "")
UNEMBED = ("embed", "vocab")
TABLE = ("vocab", "embed")

Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def cross_entropy(tied: bool, chunks: int = 1, layout: Layout | None = None) -> Loss:
    """Differentiable x (B, S, D), weight, targets (B, S) -> summed loss, a float32 scalar.

    Args:
        tied: the weight is the embedding table (V, D); otherwise an unembedding (D, V).
        chunks: sequential parts of the local tokens; as many as divide the local sequence are used.
    """
    shards = _Shards.of(tied, chunks, layout)
    if layout is None:
        forward = named("loss_forward", shards.forward)
        backward = named("loss_backward", shards.backward)
    else:
        x, w, t = layout.spec(STREAM), layout.spec(TABLE if tied else UNEMBED), layout.spec(TARGETS)
        scalar = jax.sharding.PartitionSpec()
        forward = named("loss_forward", shards.forward, layout, (x, w, t), (scalar, t))
        backward = named("loss_backward", shards.backward, layout, (x, w, t, t, scalar), (x, w))

    @jax.custom_vjp
    def loss(x: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        return forward(x, weight, targets)[0]

    def loss_forward(x: jax.Array, weight: jax.Array, targets: jax.Array) -> tuple[jax.Array, tuple]:
        total, logsumexp = forward(x, weight, targets)
        return total, (x, weight, targets, logsumexp)

    def loss_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, np.ndarray]:
        dx, dw = backward(*residuals, cotangent)
        return dx, dw, np.zeros(residuals[2].shape, jax.dtypes.float0)

    loss.defvjp(loss_forward, loss_backward)
    return loss


@dataclass(frozen=True)
class _Shards:
    """The loss on local shards. Axes are those over which each exchange goes; all empty without a mesh."""

    tied: bool
    chunks: int
    vocab_axes: tuple[str, ...] = ()
    embed_axes: tuple[str, ...] = ()
    seq_axes: tuple[str, ...] = ()
    batch_axes: tuple[str, ...] = ()
    seq_shards: int = 1

    @classmethod
    def of(cls, tied: bool, chunks: int, layout: Layout | None) -> _Shards:
        if layout is None:
            return cls(tied, chunks)
        vocab, seq = layout.axes_of("vocab", UNEMBED), layout.axes_of("seq", STREAM)
        if seq and seq != vocab:
            raise ValueError(f"seq must be sharded like vocab ({vocab}) or not at all, got {seq}")
        embed, batch = layout.axes_of("embed", UNEMBED), layout.axes_of("batch", STREAM)
        return cls(tied, chunks, vocab, embed, seq, batch, layout.size(seq))

    def forward(self, x: jax.Array, weight: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Summed loss over all devices, and each local token's logsumexp (b, S)."""
        w = self.gathered(weight, x.dtype)

        def chunk(total: jax.Array, part: tuple) -> tuple[jax.Array, jax.Array]:
            x, targets = part
            logits = self.logits(self.whole(x), w)
            maximum = _reduce(lax.pmax, logits.max(-1), self.vocab_axes)
            normalizer = _reduce(lax.psum, jnp.exp(logits - maximum[..., None]).sum(-1), self.vocab_axes)
            picked = jnp.sum(jnp.where(self.hits(targets, logits.shape[-1]), logits, 0.0), -1)
            picked = _reduce(lax.psum, picked, self.vocab_axes)
            logsumexp = maximum + jnp.log(normalizer)
            return total + jnp.sum(logsumexp - picked), logsumexp

        parts = self.split(x), self.split_whole(targets)
        total, logsumexp = lax.scan(chunk, jnp.zeros((), jnp.float32), parts)
        return _reduce(lax.psum, total, self.batch_axes), self.join_whole(logsumexp)

    def backward(
        self, x: jax.Array, weight: jax.Array, targets: jax.Array, logsumexp: jax.Array, cotangent: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Cotangents of x (in its dtype) and of the weight shard (in its dtype)."""
        w = self.gathered(weight, x.dtype)

        def chunk(dw: jax.Array, part: tuple) -> tuple[jax.Array, jax.Array]:
            x, targets, logsumexp = part
            x = self.whole(x)
            probabilities = jnp.exp(self.logits(x, w) - logsumexp[..., None])
            hits = self.hits(targets, probabilities.shape[-1])
            d_logits = ((probabilities - hits.astype(jnp.float32)) * cotangent).astype(x.dtype)
            dx = jnp.einsum("bsv,vd->bsd" if self.tied else "bsv,dv->bsd", d_logits, w)
            if self.seq_axes:
                dx = lax.psum_scatter(dx, self.seq_axes, scatter_dimension=1, tiled=True)
            else:
                dx = _reduce(lax.psum, dx, self.vocab_axes)
            subscripts = "bsv,bsd->vd" if self.tied else "bsd,bsv->dv"
            operands = (d_logits, x) if self.tied else (x, d_logits)
            return dw + jnp.einsum(subscripts, *operands, preferred_element_type=jnp.float32), dx

        parts = self.split(x), self.split_whole(targets), self.split_whole(logsumexp)
        dw, dx = lax.scan(chunk, jnp.zeros(w.shape, jnp.float32), parts)
        return self.join(dx), self.scattered(dw).astype(weight.dtype)

    def gathered(self, weight: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """The local vocabulary's weight with its whole `embed` dim, cast before it travels."""
        weight = weight.astype(dtype)
        if not self.embed_axes:
            return weight
        return lax.all_gather(weight, self.embed_axes, axis=1 if self.tied else 0, tiled=True)

    def scattered(self, dw: jax.Array) -> jax.Array:
        if self.embed_axes:
            dw = lax.psum_scatter(dw, self.embed_axes, scatter_dimension=1 if self.tied else 0, tiled=True)
        return _reduce(lax.psum, dw, tuple(a for a in self.batch_axes if a not in self.embed_axes))

    def logits(self, x: jax.Array, w: jax.Array) -> jax.Array:
        subscripts = "bsd,vd->bsv" if self.tied else "bsd,dv->bsv"
        return jnp.einsum(subscripts, x, w, preferred_element_type=jnp.float32)

    def hits(self, targets: jax.Array, width: int) -> jax.Array:
        """Where the local vocabulary's logits are the target's (b, s, v)."""
        first = lax.axis_index(self.vocab_axes) * width if self.vocab_axes else 0
        return (targets - first)[..., None] == jnp.arange(width)

    def whole(self, x: jax.Array) -> jax.Array:
        """A chunk with the tokens of every shard of the sequence."""
        return lax.all_gather(x, self.seq_axes, axis=1, tiled=True) if self.seq_axes else x

    def split(self, x: jax.Array) -> jax.Array:
        """Local (b, s, D) to (chunks, b, s / chunks, D)."""
        count = math.gcd(self.chunks, x.shape[1])
        return jnp.moveaxis(x.reshape(x.shape[0], count, -1, x.shape[2]), 1, 0)

    def join(self, x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], -1, x.shape[3])

    def split_whole(self, values: jax.Array) -> jax.Array:
        """(b, S) to (chunks, b, S / chunks), in the order in which `whole` lays out a chunk's tokens."""
        batch, seq = values.shape
        count = math.gcd(self.chunks, seq // self.seq_shards)
        values = values.reshape(batch, self.seq_shards, count, -1)
        return jnp.moveaxis(values, 2, 0).reshape(count, batch, -1)

    def join_whole(self, values: jax.Array) -> jax.Array:
        count, batch, _ = values.shape
        values = values.reshape(count, batch, self.seq_shards, -1)
        return jnp.moveaxis(values, 0, 2).reshape(batch, -1)


def _reduce(collective: Callable, value: jax.Array, axes: Sequence[str]) -> jax.Array:
    return collective(value, tuple(axes)) if axes else value
