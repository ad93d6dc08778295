"""Softmax cross-entropy with the output projection as one operation, one part of the vocabulary at a time.

Each device holds a shard of the vocabulary and exchanges only the maximum and the sum of every token (Shoeybi
et al. 2019, arXiv:1909.08053, section 3). It goes through its shard in chunks: a chunk's weight is gathered
over the axes of `embed` in the compute dtype, its logits update a running maximum and sum (Milakov and
Gimelshein 2018, arXiv:1805.02867), and in the backward pass its logits are made again and its weight
gradient, complete at once, is reduced and scattered. So neither the logits, nor the whole gathered weight,
nor its whole gradient ever exist. Arithmetic of the softmax and the sum of x's gradient are float32.

The sequence is gathered over the vocabulary's axes alone: over a context axis, which stores a part of `embed`, every
device keeps its own tokens, as it does over the batch's.
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
UNEMBED = ("embed", "vocab")
TABLE = ("vocab", "embed")

Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def cross_entropy(tied: bool, chunks: int = 1, layout: Layout | None = None) -> Loss:
    """Differentiable x (B, S, D), weight, targets (B, S) -> summed loss, a float32 scalar.

    Args:
        tied: the weight is the embedding table (V, D); otherwise an unembedding (D, V).
        chunks: sequential parts of the local vocabulary; as many as divide it are used.
    """
    shards = _Shards.of(tied, chunks, layout)
    weight_dims = TABLE if tied else UNEMBED
    if layout is None:
        forward = named("loss_forward", shards.forward)
        backward = named("loss_backward", shards.backward)
    else:
        x, w, dw = layout.spec(STREAM), layout.spec(weight_dims), layout.gradient_spec(weight_dims)
        t = jax.sharding.PartitionSpec(x[0], shards.context_axes or None)
        scalar = jax.sharding.PartitionSpec()
        forward = named("loss_forward", shards.forward, layout, (x, w, t), (scalar, t))
        backward = named("loss_backward", shards.backward, layout, (x, w, t, t, scalar), (x, dw))

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
    """The loss on local shards. Axes are those over which each exchange goes; all empty without a mesh.

    Legend: b, S local sequences and tokens of a context shard; D embed; v the vocabulary of one chunk.

    Attributes:
        scattered: the tokens of a context shard are sharded over the vocabulary's axes.
        context_axes: that shard the major part of the sequence.
        gradient_axes: that shard `embed` in the weight's gradient: those of the weight, and more of them under ZeRO-2,
            into `parts` parts of a shard.
    """

    tied: bool
    chunks: int
    vocab_axes: tuple[str, ...] = ()
    embed_axes: tuple[str, ...] = ()
    scattered: bool = False
    context_axes: tuple[str, ...] = ()
    batch_axes: tuple[str, ...] = ()
    gradient_axes: tuple[str, ...] = ()
    parts: int = 1

    @classmethod
    def of(cls, tied: bool, chunks: int, layout: Layout | None) -> _Shards:
        if layout is None:
            return cls(tied, chunks)
        vocab, seq = layout.axes_of("vocab", UNEMBED), layout.axes_of("seq", STREAM)
        context = tuple(axis for axis in seq if axis not in vocab)
        if seq not in (context, (*context, *vocab)):
            raise ValueError(f"seq must be sharded over {context}, then like vocab ({vocab}) or not at all, got {seq}")
        embed, batch = layout.axes_of("embed", UNEMBED), layout.axes_of("batch", STREAM)
        kept = layout.gradient_axes_of("embed", UNEMBED)
        parts = layout.size(kept) // layout.size(embed)
        return cls(tied, chunks, vocab, embed, seq != context, context, batch, kept, parts)

    @property
    def token_axes(self) -> tuple[str, ...]:
        """The axes over which devices have different tokens."""
        return (*self.batch_axes, *self.context_axes)

    def forward(self, x: jax.Array, weight: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Summed loss over all devices, and each local token's logsumexp (b, S)."""
        x = self.whole(x)

        def chunk(carry: tuple, index: jax.Array) -> tuple[tuple, None]:
            maximum, normalizer, picked = carry
            logits = self.logits(x, self.gathered(self.part(weight, index), x.dtype))
            higher = jnp.maximum(maximum, logits.max(-1))
            normalizer = normalizer * jnp.exp(maximum - higher) + jnp.exp(logits - higher[..., None]).sum(-1)
            hits = self.hits(targets, self.first(weight, index), logits.shape[-1])
            return (higher, normalizer, picked + jnp.where(hits, logits, 0.0).sum(-1)), None

        lowest = jnp.full(targets.shape, jnp.finfo(jnp.float32).min)
        start = lowest, jnp.zeros_like(lowest), jnp.zeros_like(lowest)
        (maximum, normalizer, picked), _ = lax.scan(chunk, start, jnp.arange(self.count(weight)))
        highest = _reduce(lax.pmax, maximum, self.vocab_axes)
        normalizer = _reduce(lax.psum, normalizer * jnp.exp(maximum - highest), self.vocab_axes)
        logsumexp = highest + jnp.log(normalizer)
        total = jnp.sum(logsumexp - _reduce(lax.psum, picked, self.vocab_axes))
        return _reduce(lax.psum, total, self.token_axes), logsumexp

    def backward(
        self, x: jax.Array, weight: jax.Array, targets: jax.Array, logsumexp: jax.Array, cotangent: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Cotangents of x (in its dtype) and of the weight (in its dtype), of which the part that is kept here."""
        x = self.whole(x)

        def chunk(carry: tuple, index: jax.Array) -> tuple[tuple, None]:
            dx, dw = carry
            w = self.gathered(self.part(weight, index), x.dtype)
            probabilities = jnp.exp(self.logits(x, w) - logsumexp[..., None])
            hits = self.hits(targets, self.first(weight, index), probabilities.shape[-1])
            d_logits = ((probabilities - hits.astype(jnp.float32)) * cotangent).astype(x.dtype)
            back = "bsv,vd->bsd" if self.tied else "bsv,dv->bsd"
            dx = dx + jnp.einsum(back, d_logits, w, preferred_element_type=jnp.float32)
            operands = ("bsv,bsd->vd", d_logits, x) if self.tied else ("bsd,bsv->dv", x, d_logits)
            part = self.reduced(jnp.einsum(*operands)).astype(weight.dtype)
            return (
                dx,
                lax.dynamic_update_slice_in_dim(dw, part, index * self.width(weight), self.vocab_dim),
            ), None

        kept = tuple(n if i == self.vocab_dim else n // self.parts for i, n in enumerate(weight.shape))
        start = jnp.zeros(x.shape, jnp.float32), jnp.zeros(kept, weight.dtype)
        (dx, dw), _ = lax.scan(chunk, start, jnp.arange(self.count(weight)))
        dx = dx.astype(x.dtype)
        if self.scattered:
            return lax.psum_scatter(dx, self.vocab_axes, scatter_dimension=1, tiled=True), dw
        return _reduce(lax.psum, dx, self.vocab_axes), dw

    @property
    def vocab_dim(self) -> int:
        """The dimension of the weight that is the vocabulary."""
        return 0 if self.tied else 1

    def count(self, weight: jax.Array) -> int:
        """Chunks of the local vocabulary."""
        return math.gcd(self.chunks, weight.shape[self.vocab_dim])

    def width(self, weight: jax.Array) -> int:
        """Vocabulary of one chunk."""
        return weight.shape[self.vocab_dim] // self.count(weight)

    def first(self, weight: jax.Array, index: jax.Array) -> jax.Array:
        """The global number of a chunk's first token."""
        shard = lax.axis_index(self.vocab_axes) * weight.shape[self.vocab_dim] if self.vocab_axes else 0
        return shard + index * self.width(weight)

    def part(self, weight: jax.Array, index: jax.Array) -> jax.Array:
        """One chunk of the local weight."""
        return lax.dynamic_slice_in_dim(
            weight, index * self.width(weight), self.width(weight), self.vocab_dim
        )

    def gathered(self, weight: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """A chunk's weight with its whole `embed` dim, cast before it travels."""
        weight = weight.astype(dtype)
        if not self.embed_axes:
            return weight
        return lax.all_gather(weight, self.embed_axes, axis=1 - self.vocab_dim, tiled=True)

    def reduced(self, dw: jax.Array) -> jax.Array:
        """A chunk's weight gradient, summed over all tokens, where it is kept."""
        if self.gradient_axes:
            dw = lax.psum_scatter(dw, self.gradient_axes, scatter_dimension=1 - self.vocab_dim, tiled=True)
        return _reduce(lax.psum, dw, tuple(a for a in self.token_axes if a not in self.gradient_axes))

    def logits(self, x: jax.Array, w: jax.Array) -> jax.Array:
        subscripts = "bsd,vd->bsv" if self.tied else "bsd,dv->bsv"
        return jnp.einsum(subscripts, x, w, preferred_element_type=jnp.float32)

    def hits(self, targets: jax.Array, first: jax.Array, width: int) -> jax.Array:
        """Where a chunk's logits are the target's (b, S, v)."""
        return (targets - first)[..., None] == jnp.arange(width)

    def whole(self, x: jax.Array) -> jax.Array:
        """All tokens of a context shard."""
        return lax.all_gather(x, self.vocab_axes, axis=1, tiled=True) if self.scattered else x


def _reduce(collective: Callable, value: jax.Array, axes: Sequence[str]) -> jax.Array:
    return collective(value, tuple(axes)) if axes else value
