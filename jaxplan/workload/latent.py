"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): heads made from small latents.

    q = W_UQ norm(W_DQ x)           per head: a plain and a rotary part
    c = norm(W_DKV x)               the latent of keys and values
    k = [W_UK c, RoPE(W_KR x)]      the rotary part is shared by all heads
    v = W_UV c

Latents are made where the residual stream lies and gathered along the sequence, which is less than the stream itself;
heads are sharded, ranks are not. Attention kernels take one width of heads: values are padded to that of the keys, and
the padding is computed, in the result as in the work that is counted.

Dims: batch B, seq S, embed D, heads N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxplan.errors import InputError
from jaxplan.workload.kernels.attention import KEY, QUERY
from jaxplan.workload.kernels.calls import kept
from jaxplan.workload.layout import Names
from jaxplan.workload.norms import rms_norm
from jaxplan.workload.rotary import Rotary, rotate
from jaxplan.workload.shape import LatentAttentionShape

if TYPE_CHECKING:
    from jaxplan.workload.block import Block, Weights


def latent_attention(block: Block, x: jax.Array, w: Weights, rotary: Rotary | None) -> jax.Array:
    """x (B, S, D) to the heads' results, (B, S, N, value_head_dim); rotary angles are of `rope_head_dim`.

    Raises:
        InputError: values are wider than keys.
    """
    latent = block.shape.latent_attention
    if latent is None or rotary is None:
        raise ValueError(f"{block.shape.name}: latent attention needs its shape and rotary positions")
    padding = latent.query_head_dim - latent.value_head_dim
    if padding < 0:
        raise InputError(
            f"{block.shape.name}: values of {latent.value_head_dim} a head",
            f"at most the keys' width, {latent.query_head_dim}",
        )
    query = block.constrain(_query(block, x, w, latent, rotary), QUERY)
    key, value = _key_value(block, x, w, latent, rotary)
    value = jnp.pad(value, ((0, 0), (0, 0), (0, 0), (0, padding)))
    query, key, value = (
        kept(v, name) for v, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    return block.attend(query, key, value)[..., : latent.value_head_dim]


def _made(block: Block, x: jax.Array, weight: jax.Array, dim: str) -> jax.Array:
    """x (B, S, D) times a weight (D, R), made where x lies: (B, S, R)."""
    return block.constrain(jnp.einsum("bsd,dr->bsr", x, weight), _latent_dims(dim))


def _latent_dims(dim: str) -> Names:
    return ("batch", "seq", dim)


def _query(
    block: Block, x: jax.Array, w: Weights, latent: LatentAttentionShape, rotary: Rotary
) -> jax.Array:
    """Queries (B, S, N, plain and rotary part)."""
    if "query" in w:
        query = jnp.einsum("bsd,dnh->bsnh", block.enter(x, ("batch", "seq", "embed")), w["query"])
    else:
        small = rms_norm(_made(block, x, w["query_down"], "q_rank"), w["query_rank_norm"], block.shape.norm_eps)
        query = jnp.einsum("bsr,rnh->bsnh", block.enter(small, _latent_dims("q_rank")), w["query_up"])
    query = block.constrain(query, QUERY)
    plain, turned = jnp.split(query, [latent.nope_head_dim], -1)
    return jnp.concatenate([plain, rotate(turned, *rotary)], -1)


def _key_value(
    block: Block, x: jax.Array, w: Weights, latent: LatentAttentionShape, rotary: Rotary
) -> tuple[jax.Array, jax.Array]:
    """Keys (B, S, N, plain and rotary part) and values (B, S, N, value_head_dim)."""
    small = rms_norm(_made(block, x, w["latent_down"], "kv_rank"), w["latent_norm"], block.shape.norm_eps)
    small = block.enter(small, _latent_dims("kv_rank"))
    shared = block.enter(_made(block, x, w["rotary_key"], "rotary_dim"), _latent_dims("rotary_dim"))
    plain, value = (block.constrain(jnp.einsum("bsr,rnh->bsnh", small, w[n]), KEY) for n in ("key_up", "value_up"))
    turned = rotate(shared[:, :, None], *rotary)
    turned = jnp.broadcast_to(turned, (*plain.shape[:-1], latent.rope_head_dim))
    return block.constrain(jnp.concatenate([plain, turned], -1), KEY), value
