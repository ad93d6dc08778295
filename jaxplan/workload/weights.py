"""The reference decoder's parameters: their dims by name, their sizes, their initial values.

Every projection is stored with `embed` first, so that fully-sharded storage always shards a major dim: also where a
weight has one matrix an expert, because a GPU gathers along a major dim only, and XLA transposes whole stacks of
weights for that (jaxlib 0.10.2). What is made from a low-rank latent is stored with the rank first.

A model is one stack of equal blocks, `layers`, or two where a mixture of experts has leading dense ones:
`dense_layers`, then `layers`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxplan.workload.layout import Names
from jaxplan.workload.shape import ExpertShape, LatentAttentionShape, ModelShape

Tree = dict[str, Any]
QUERY = ("embed", "heads", "head_dim")
KEY = ("embed", "kv_heads", "head_dim")
EXPERT = ("embed", "expert", "mlp")
FEED_FORWARD = ("embed", "mlp")
LAYERS, DENSE_LAYERS = "layers", "dense_layers"


def stacks(shape: ModelShape) -> tuple[str, ...]:
    """The model's stacks of equal blocks, in the order in which they run."""
    leading = shape.experts is not None and shape.experts.first_dense_layers > 0
    return (DENSE_LAYERS, LAYERS) if leading else (LAYERS,)


def depth(shape: ModelShape, stack: str) -> int:
    """Blocks of a stack."""
    return shape.repeated_layers if stack == LAYERS else shape.layers - shape.repeated_layers


def parameter_dims(shape: ModelShape) -> Tree:
    """The names of every parameter's dims, as a tree of the parameters' structure."""
    top: Tree = {"embedding": ("vocab", "embed")} | _norm_dims(shape, "final_norm")
    for stack in stacks(shape):
        top[stack] = {name: (stack, *dims) for name, dims in block_dims(shape, stack).items()}
    if not shape.tied_embeddings:
        top["unembed"] = ("embed", "vocab")
    if shape.positions == "learned":
        top["positions"] = ("positions", "embed")
    return top


def _norm_dims(shape: ModelShape, name: str, dim: str = "embed") -> dict[str, Names]:
    dims: dict[str, Names] = {name: (dim,)}
    if shape.norm == "layernorm":
        dims[name + "_bias"] = (dim,)
    return dims


def block_dims(shape: ModelShape, stack: str = LAYERS) -> dict[str, Names]:
    """The names of the dims of one block's parameters."""
    dims = dict(_attention_dims(shape) if shape.latent_attention is None else _latent_dims(shape.latent_attention))
    experts = shape.experts if stack == LAYERS else None
    dims |= _dense_dims(shape) if experts is None else _expert_dims(shape, experts)
    for name in ("attention_norm", "mlp_norm"):
        dims |= _norm_dims(shape, name)
    if shape.post_norms:
        dims |= _norm_dims(shape, "attention_post_norm") | _norm_dims(shape, "mlp_post_norm")
    return dims


def _attention_dims(shape: ModelShape) -> dict[str, Names]:
    dims: dict[str, Names] = {"query": QUERY, "key": KEY, "value": KEY, "output": QUERY}
    if shape.qk_norm:
        dims |= {"query_norm": ("head_dim",), "key_norm": ("head_dim",)}
    if shape.attention_bias:
        dims |= {name + "_bias": dims[name][1:] for name in ("query", "key", "value")}
    if shape.output_bias:
        dims["output_bias"] = ("embed",)
    return dims


def _latent_dims(latent: LatentAttentionShape) -> dict[str, Names]:
    """Multi-head latent attention: see `workload.latent`."""
    dims: dict[str, Names] = {"query": QUERY}
    if latent.query_rank:
        dims = {
            "query_down": ("embed", "q_rank"),
            "query_rank_norm": ("q_rank",),
            "query_up": ("q_rank", "heads", "head_dim"),
        }
    return dims | {
        "latent_down": ("embed", "kv_rank"),
        "latent_norm": ("kv_rank",),
        "rotary_key": ("embed", "rotary_dim"),
        "key_up": ("kv_rank", "heads", "plain_dim"),
        "value_up": ("kv_rank", "heads", "value_dim"),
        "output": ("embed", "heads", "value_dim"),
    }


def _dense_dims(shape: ModelShape, prefix: str = "") -> dict[str, Names]:
    names = ("gate", "up") if shape.gated else ("up",)
    dims: dict[str, Names] = {prefix + name: FEED_FORWARD for name in (*names, "down")}
    if shape.mlp_bias and not prefix:
        dims |= {name + "_bias": ("mlp",) for name in names} | {"down_bias": ("embed",)}
    return dims


def _expert_dims(shape: ModelShape, experts: ExpertShape) -> dict[str, Names]:
    """A mixture of experts: see `workload.experts`. The router's outputs have a name that no rule shards."""
    dims: dict[str, Names] = {"router": ("embed", "routes")}
    dims |= dict.fromkeys(("gate", "up", "down") if shape.gated else ("up", "down"), EXPERT)
    if experts.router_bias:
        dims["router_bias"] = ("routes",)
    if experts.shared:
        dims |= _dense_dims(shape, "shared_")
    if experts.shared_gate:
        dims["shared_switch"] = ("embed",)
    return dims


def dim_sizes(shape: ModelShape, stack: str = LAYERS, name: str = "") -> dict[str, int]:
    """The size of every dim that a parameter has.

    Args:
        stack, name: the parameter; the hidden width of a mixture of experts differs from that of dense blocks.
    """
    names = ("embed", "mlp", "heads", "kv_heads", "head_dim", "vocab")
    sizes = {dim: getattr(shape, dim) for dim in names} | {"positions": shape.max_positions}
    sizes |= {one: depth(shape, one) for one in stacks(shape)}
    if (latent := shape.latent_attention) is not None:
        sizes |= {"q_rank": latent.query_rank, "kv_rank": latent.kv_rank, "rotary_dim": latent.rope_head_dim}
        sizes |= {"head_dim": latent.query_head_dim, "plain_dim": latent.nope_head_dim}
        sizes |= {"value_dim": latent.value_head_dim}
    if (experts := shape.experts) is not None and stack == LAYERS:
        shared = name.startswith("shared_")
        sizes |= {"routes": experts.experts, "expert": experts.experts}
        sizes |= {"mlp": experts.shared * experts.shared_mlp if shared else experts.mlp}
    return sizes


def dtype_of(name: str, compute_dtype: DTypeLike) -> DTypeLike:
    """The dtype that a block's weight is computed with: a router's is float32."""
    return jnp.float32 if name.startswith("router") else compute_dtype


def block_sizes(shape: ModelShape, stack: str = LAYERS) -> dict[str, tuple[int, ...]]:
    """The sizes of one block's parameters."""
    return {
        name: tuple(dim_sizes(shape, stack, name)[dim or ""] for dim in dims)
        for name, dims in block_dims(shape, stack).items()
    }


def _contracted(name: str, dims: Names) -> Names:
    """The dims over which a projection sums, of whose size its initial values depend."""
    own = [dim for dim in dims if dim not in (LAYERS, DENSE_LAYERS, "expert")]
    if name == "output":
        return own[1:]
    if name in ("down", "shared_down"):
        return ("mlp",)
    return own[:1] if name in ("query_up", "key_up", "value_up") else ("embed",)


def initial(key: jax.Array, name: str, dims: Names, sizes: dict[str, int], dtype: DTypeLike) -> jax.Array:
    """Ones for norm scales, zeros for biases, else normal with variance 1 / fan-in."""
    shape = tuple(sizes[dim or ""] for dim in dims)
    if name.endswith("_bias"):
        return jnp.zeros(shape, dtype)
    if name.endswith("_norm"):
        return jnp.ones(shape, dtype)
    fan_in = math.prod(sizes[dim or ""] for dim in _contracted(name, dims))
    return jax.random.normal(key, shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)
