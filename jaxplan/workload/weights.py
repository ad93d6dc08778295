"""The reference decoder's parameters: their dims by name, their sizes, their initial values.

Every projection is stored with `embed` first, so that fully-sharded storage always shards a major dim.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxplan.errors import InputError
from jaxplan.workload.layout import Names
from jaxplan.workload.shape import ModelShape

Tree = dict[str, Any]
QUERY = ("embed", "heads", "head_dim")
KEY = ("embed", "kv_heads", "head_dim")


def parameter_dims(shape: ModelShape) -> Tree:
    """The names of every parameter's dims, as a tree of the parameters' structure.

    Raises:
        InputError: the shape has mixture-of-experts layers or latent attention.
    """
    for present, what in (
        (shape.experts, "mixture-of-experts layers"),
        (shape.latent_attention, "latent attention"),
    ):
        if present is not None:
            raise InputError(f"{shape.name} is not runnable yet: the reference decoder has no {what}")
    layers = {name: ("layers", *dims) for name, dims in block_dims(shape).items()}
    top: Tree = {"embedding": ("vocab", "embed"), "layers": layers} | _norm_dims(shape, "final_norm")
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


def block_dims(shape: ModelShape) -> dict[str, Names]:
    """The names of the dims of one block's parameters."""
    dims: dict[str, Names] = {"query": QUERY, "key": KEY, "value": KEY, "output": QUERY}
    dims |= {"up": ("embed", "mlp"), "down": ("embed", "mlp")}
    if shape.gated:
        dims["gate"] = ("embed", "mlp")
    for name in ("attention_norm", "mlp_norm"):
        dims |= _norm_dims(shape, name)
    if shape.post_norms:
        dims |= _norm_dims(shape, "attention_post_norm") | _norm_dims(shape, "mlp_post_norm")
    if shape.qk_norm:
        dims |= {"query_norm": ("head_dim",), "key_norm": ("head_dim",)}
    biased = [(name, dims[name][1:]) for name in ("query", "key", "value") if shape.attention_bias]
    biased += [("output", ("embed",))] if shape.output_bias else []
    biased += (
        [(n, dims[n][1:]) for n in ("gate", "up") if n in dims] + [("down", ("embed",))]
        if shape.mlp_bias
        else []
    )
    return dims | {name + "_bias": bias for name, bias in biased}


def dim_sizes(shape: ModelShape) -> dict[str, int]:
    """The size of every dim that a parameter has."""
    names = ("layers", "embed", "mlp", "heads", "kv_heads", "head_dim", "vocab")
    return {name: getattr(shape, name) for name in names} | {"positions": shape.max_positions}


def _contracted(name: str) -> tuple[str, ...]:
    return {"output": ("heads", "head_dim"), "down": ("mlp",), "embedding": (), "positions": ()}.get(
        name, ("embed",)
    )


def initial(key: jax.Array, name: str, dims: Names, sizes: dict[str, int], dtype: DTypeLike) -> jax.Array:
    """Ones for norm scales, zeros for biases, else normal with variance 1 / fan-in."""
    shape = tuple(sizes[dim or ""] for dim in dims)
    if name.endswith("_bias"):
        return jnp.zeros(shape, dtype)
    if name.endswith("_norm"):
        return jnp.ones(shape, dtype)
    fan_in = np.prod([sizes[dim] for dim in _contracted(name)]) if _contracted(name) else sizes["embed"]
    return jax.random.normal(key, shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)
