"""Rotary positions: queries and keys turned by angles that grow with the position, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxplan.workload.shape import ModelShape

Rotary = tuple[jax.Array, jax.Array]    # cosines and sines (S, H / 2)


def rotary_width(shape: ModelShape) -> int:
    """Width of the part of a head that is turned: all of it, or the rotary part of latent attention."""
    return shape.head_dim if shape.latent_attention is None else shape.latent_attention.rope_head_dim


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
