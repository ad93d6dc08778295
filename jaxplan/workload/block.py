"""One block of the reference decoder as a pure function of its input and its weights.

Dims: batch B, seq S, embed D, heads N, kv_heads K, head_dim H, mlp F. Every projection is stored with `embed`
first, so that fully-sharded storage always shards a major dim. Norms, rotary angles, routers and softmax are float32,
the rest the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxplan.workload.activations import hidden
from jaxplan.workload.experts import mixture
from jaxplan.workload.kernels.attention import KEY, QUERY, Attention
from jaxplan.workload.kernels.calls import kept
from jaxplan.workload.kernels.dispatch import Exchange
from jaxplan.workload.kernels.dropless import Dropless
from jaxplan.workload.latent import latent_attention
from jaxplan.workload.layout import Names
from jaxplan.workload.norms import norm, rms_norm
from jaxplan.workload.rotary import Rotary, rotary_angles, rotate  # noqa: F401
from jaxplan.workload.shape import ModelShape

Weights = Mapping[str, jax.Array]
STREAM = ("batch", "seq", "embed")
HIDDEN = ("batch", "seq", "mlp")

#: What goes through the blocks: the residual stream (B, S, D); in mixtures of experts beside it (B, G) in float32, the
#: balance loss of each group of tokens, added up over the blocks so far.
Stream = jax.Array | tuple[jax.Array, jax.Array]


@dataclass(frozen=True, eq=False)
class Block:
    """What a block needs beside its input and its weights.

    Attributes:
        attend: causal attention of (B, S, N, H) with (B, S, K, H) twice.
        constrain: holds a value in the plan's sharding of its dims; the identity without a mesh.
        weight: the named weight as the block computes with it: cast to the compute dtype, then gathered.
        enter, leave: before and after the part of a block that tensor axes share (`Layout.enter`).
        exchange: how tokens get to experts; None where the model has none.
    """

    shape: ModelShape
    attend: Attention
    constrain: Callable[[jax.Array, Names], jax.Array]
    weight: Callable[[str, jax.Array], jax.Array]
    enter: Callable[[jax.Array, Names], jax.Array]
    leave: Callable[[jax.Array, Names], jax.Array]
    exchange: Exchange | Dropless | None = None

    def __call__(self, stream: Stream, weights: Weights, rotary: Rotary | None) -> Stream:
        """The stream behind the block; `rotary`: cosines and sines (S, H / 2) of rotary positions."""
        x, balance = stream if isinstance(stream, tuple) else (stream, None)
        w = {name: self.weight(name, value) for name, value in weights.items()}
        attended = self._norm(
            self._attention(self._norm(x, w, "attention_norm"), w, rotary), w, "attention_post_norm"
        )
        x = self.constrain(x + attended, STREAM)
        fed, more = self._fed(self._norm(x, w, "mlp_norm"), w)
        x = self.constrain(x + self._norm(fed, w, "mlp_post_norm"), STREAM)
        return x if balance is None else (x, balance + more)

    def _norm(self, x: jax.Array, w: Weights, name: str) -> jax.Array:
        return norm(x, w[name], w.get(name + "_bias"), self.shape) if name in w else x

    def _attention(self, x: jax.Array, w: Weights, rotary: Rotary | None) -> jax.Array:
        latent = self.shape.latent_attention is not None
        attended = (latent_attention if latent else heads_attention)(self, x, w, rotary)
        out = self.leave(jnp.einsum("bsnh,dnh->bsd", attended, w["output"]), STREAM)
        return checkpoint_name(_biased(out, w, "output"), "attention_output")

    def _fed(self, x: jax.Array, w: Weights) -> tuple[jax.Array, jax.Array | float]:
        """Through the experts or the dense feed-forward, whichever has weights here; and the balance loss."""
        return mixture(self, x, w) if "router" in w else (self.feed_forward(x, w), 0.0)

    def feed_forward(self, x: jax.Array, w: Weights, prefix: str = "") -> jax.Array:
        """The dense feed-forward whose weights' names begin so: (B, S, D) to the same shape."""
        x = self.enter(x, STREAM)

        def made(name: str) -> jax.Array:
            value = _biased(jnp.einsum("bsd,df->bsf", x, w[prefix + name]), w, prefix + name)
            return checkpoint_name(self.constrain(value, HIDDEN), f"mlp_{name}")

        out = jnp.einsum("bsf,df->bsd", hidden(self.shape.activation, made), w[prefix + "down"])
        out = self.leave(out, STREAM)
        return checkpoint_name(_biased(out, w, prefix + "down"), "mlp_output")


def heads_attention(block: Block, x: jax.Array, w: Weights, rotary: Rotary | None) -> jax.Array:
    """Attention of (grouped) heads: x (B, S, D) to the heads' results, (B, S, N, H)."""
    x = block.enter(x, STREAM)
    query, key, value = (
        block.constrain(_biased(jnp.einsum("bsd,dnh->bsnh", x, w[name]), w, name), dims)
        for name, dims in (("query", QUERY), ("key", KEY), ("value", KEY))
    )
    if block.shape.qk_norm:
        query, key = (
            rms_norm(q, w[n], block.shape.norm_eps) for q, n in ((query, "query_norm"), (key, "key_norm"))
        )
    if rotary is not None:
        query, key = rotate(query, *rotary), rotate(key, *rotary)
    query, key, value = (
        kept(q, name) for q, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    return block.attend(query, key, value)


def _biased(x: jax.Array, w: Weights, name: str) -> jax.Array:
    return x + w[name + "_bias"] if name + "_bias" in w else x
