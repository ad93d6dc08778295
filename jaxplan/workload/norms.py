"""Norms over the last dim; their arithmetic is float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxplan.workload.shape import ModelShape


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
