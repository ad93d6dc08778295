"""One block of the reference decoder as a pure function of its input and its weights.

Dims: batch B, seq S, embed D, heads N, kv_heads K, head_dim H, mlp F. Every projection is stored with `embed`
first, so that fully-sharded storage always shards a major dim. Norms, rotary angles and softmax are float32,
the rest the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxplan.workload.kernels.attention import KEY, QUERY, Attention
from jaxplan.workload.layout import Names
from jaxplan.workload.shape import ModelShape

Weights = Mapping[str, jax.Array]
STREAM = ("batch", "seq", "embed")
HIDDEN = ("batch", "seq", "mlp")


@dataclass(frozen=True, eq=False)
class Block:
    """What a block needs beside its input and its weights.

    Attributes:
        attend: causal attention of (B, S, N, H) with (B, S, K, H) twice.
        constrain: holds a value in the plan's sharding of its dims; the identity without a mesh.
        enter, leave: before and after the part of a block that tensor axes share (`Layout.enter`).
        weight: the named weight as the block computes with it: cast to the compute dtype, then gathered.
    """

    shape: ModelShape
    attend: Attention
    constrain: Callable[[jax.Array, Names], jax.Array]
    weight: Callable[[str, jax.Array], jax.Array]
    enter: Callable[[jax.Array, Names], jax.Array]
    leave: Callable[[jax.Array, Names], jax.Array]

    def __call__(
        self, x: jax.Array, weights: Weights, rotary: tuple[jax.Array, jax.Array] | None
    ) -> jax.Array:
        """x (B, S, D) to the same shape; `rotary`: cosines and sines (S, H / 2) of rotary positions."""
        w = {name: self.weight(name, value) for name, value in weights.items()}
        attended = self._norm(
            self._attention(self._norm(x, w, "attention_norm"), w, rotary), w, "attention_post_norm"
        )
        x = self.constrain(x + attended, STREAM)
        fed = self._norm(self._feed_forward(self._norm(x, w, "mlp_norm"), w), w, "mlp_post_norm")
        return self.constrain(x + fed, STREAM)

    def _norm(self, x: jax.Array, w: Weights, name: str) -> jax.Array:
        return norm(x, w[name], w.get(name + "_bias"), self.shape) if name in w else x

    def _attention(self, x: jax.Array, w: Weights, rotary: tuple[jax.Array, jax.Array] | None) -> jax.Array:
        x = self.enter(x, STREAM)
        query, key, value = (
            self.constrain(_biased(jnp.einsum("bsd,dnh->bsnh", x, w[name]), w, name), dims)
            for name, dims in (("query", QUERY), ("key", KEY), ("value", KEY))
        )
        if self.shape.qk_norm:
            query, key = (
                rms_norm(q, w[n], self.shape.norm_eps) for q, n in ((query, "query_norm"), (key, "key_norm"))
            )
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        query, key, value = (
            checkpoint_name(q, name) for q, name in ((query, "query"), (key, "key"), (value, "value"))
        )
        attended = self.attend(query, key, value)
        out = self.leave(jnp.einsum("bsnh,dnh->bsd", attended, w["output"]), STREAM)
        return checkpoint_name(_biased(out, w, "output"), "attention_output")

    def _feed_forward(self, x: jax.Array, w: Weights) -> jax.Array:
        x = self.enter(x, STREAM)
        up = _biased(jnp.einsum("bsd,df->bsf", x, w["up"]), w, "up")
        up = checkpoint_name(self.constrain(up, HIDDEN), "mlp_up")
        if self.shape.gated:
            gate = _biased(jnp.einsum("bsd,df->bsf", x, w["gate"]), w, "gate")
            gate = checkpoint_name(self.constrain(gate, HIDDEN), "mlp_gate")
            hidden = _ACTIVATIONS[self.shape.activation](gate) * up
        else:
            hidden = _ACTIVATIONS[self.shape.activation](up)
        out = self.leave(jnp.einsum("bsf,df->bsd", hidden, w["down"]), STREAM)
        return checkpoint_name(_biased(out, w, "down"), "mlp_output")


_ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,  # Shazeer 2020, arXiv:2002.05202, equation 6
    "geglu": jax.nn.gelu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
}


def _biased(x: jax.Array, w: Weights, name: str) -> jax.Array:
    return x + w[name + "_bias"] if name + "_bias" in w else x


def norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, shape: ModelShape) -> jax.Array:
    """The model's norm over the last dim."""
    if shape.norm == "layernorm":
        return layer_norm(x, scale, bias, shape.norm_eps)
    return rms_norm(x, scale, shape.norm_eps)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last dim (Zhang, Sennrich 2019, arXiv:1910.07467, eq. 4)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + eps)
    return (wide * scale.astype(jnp.float32)).astype(x.dtype)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """(x - mean) / sqrt(variance + eps) * scale + bias, last dim (Ba et al. 2016, arXiv:1607.06450)."""
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = (
        wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + eps) * scale.astype(jnp.float32)
    )
    return (wide if bias is None else wide + bias.astype(jnp.float32)).astype(x.dtype)


def rotary_angles(positions: jax.Array, width: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosines, sines (S, width / 2) of positions (S,) x theta^(-2i / width) (Su et al., arXiv:2104.09864)."""
    frequencies = theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotary positions on x (B, S, N, H); pairs are (i, i + H / 2), as Llama's published weights expect."""
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(
        x.dtype
    )
