"""A mixture of experts as the feed-forward of a block: router, balance loss, experts, shared experts.

Dims: batch B, seq S, embed D, routes and expert E, mlp F; G groups of tokens in a row, C slots at every expert for each
(`kernels.dispatch`); k experts a token. The router computes in float32, the experts in the compute dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxplan.plan.remat import ROUTE
from jaxplan.workload.activations import hidden
from jaxplan.workload.kernels.dispatch import SLOTS, Routes
from jaxplan.workload.kernels.dropless import MATRICES, Dropless
from jaxplan.workload.shape import ExpertShape

if TYPE_CHECKING:
    from jaxplan.workload.block import Block, Weights

ROUTES = ("batch", "seq", "routes")
HIDDEN = ("expert", "batch", "seq", "slot", "mlp")
SMALLEST_SUM = 1e-20        # added to the scores that are divided by their sum, as DeepSeek-V3's published code does


def mixture(block: Block, x: jax.Array, w: Weights) -> tuple[jax.Array, jax.Array]:
    """x (B, S, D) to what its experts make of it, the same shape, and each group's balance loss, (B, G)."""
    experts, exchange = block.shape.experts, block.exchange
    if experts is None or exchange is None:
        raise ValueError(f"{block.shape.name} has weights of a router, but no experts or no exchange")
    scores = _scores(block, x, w, experts)
    merits = scores + w["router_bias"] if "router_bias" in w else scores
    if isinstance(exchange, Dropless):
        chosen = checkpoint_name(exchange.choose(merits), ROUTE)
        gates, picked = gates_of(scores, chosen, experts)
        out = exchange.feed(x, gates, chosen, {name: w[name] for name in MATRICES if name in w})
    else:
        routes = Routes(*(checkpoint_name(r, ROUTE) for r in exchange.route(merits)))
        gates, picked = gates_of(scores, routes.experts, experts)
        received = checkpoint_name(exchange.dispatch(x, routes), "dispatched")
        out = exchange.combine(_fed(block, received, w), gates, routes)
    if experts.shared:
        out = out + _shared(block, x, w)
    return out, balance(scores, picked, exchange.groups_seen)


def _scores(block: Block, x: jax.Array, w: Weights, experts: ExpertShape) -> jax.Array:
    """Of every expert for every token, float32 (B, S, E)."""
    logits = jnp.einsum("bsd,dr->bsr", x.astype(jnp.float32), w["router"].astype(jnp.float32))
    logits = block.constrain(logits, ROUTES)
    return jax.nn.softmax(logits, -1) if experts.scoring == "softmax" else jax.nn.sigmoid(logits)


def gates_of(scores: jax.Array, chosen: jax.Array, experts: ExpertShape) -> tuple[jax.Array, jax.Array]:
    """The weights of the chosen experts, (B, S, k), and which they are, (B, S, k, E).

    Mixtral (arXiv:2401.04088, section 2.1), DeepSeek-V3 (arXiv:2412.19437, equations 12 to 16). Scores are compared
    and added, not looked up: a lookup's gradient is a scatter.
    """
    picked = chosen[..., None] == jnp.arange(scores.shape[-1])
    gates = jnp.where(picked, scores[..., None, :], 0.0).sum(-1)
    if experts.normalize:
        gates = gates / (gates.sum(-1, keepdims=True) + SMALLEST_SUM)
    return gates * experts.scale, picked


def balance(scores: jax.Array, picked: jax.Array, groups: int) -> jax.Array:
    """E sum over experts of f P, of each group of tokens, (B, G): 1 where all experts are chosen alike.

    f is the fraction of the group's choices that fall on an expert, P its mean share of the scores (Fedus et al. 2021,
    arXiv:2101.03961, equations 4 to 6, where k = 1; for any k DeepSeek-V3, arXiv:2412.19437, equations 17 to 20).
    A group is a part of one row, whatever the mesh and the microbatches, so that their mean does not depend on them.
    """
    rows, seq, experts = scores.shape
    shares = scores / (scores.sum(-1, keepdims=True) + SMALLEST_SUM)
    chosen = picked.astype(jnp.float32).mean(2)
    f, p = (v.reshape(rows, groups, seq // groups, experts).mean(2) for v in (lax.stop_gradient(chosen), shares))
    return experts * (f * p).sum(-1)


def _fed(block: Block, received: jax.Array, w: Weights) -> jax.Array:
    """The experts on their slots: (E, B, G, C, D) to the same shape."""
    received = block.enter(received, SLOTS)

    def made(name: str) -> jax.Array:
        value = jnp.einsum("ebgcd,def->ebgcf", received, w[name])
        return checkpoint_name(block.constrain(value, HIDDEN), f"mlp_{name}")

    out = jnp.einsum("ebgcf,def->ebgcd", hidden(block.shape.activation, made), w["down"])
    return block.constrain(block.leave(out, SLOTS), SLOTS)


def _shared(block: Block, x: jax.Array, w: Weights) -> jax.Array:
    """The experts that every token goes to: one dense feed-forward, gated by a scalar where the shape says so."""
    out = block.feed_forward(x, w, "shared_")
    if "shared_switch" in w:
        out = out * jax.nn.sigmoid(jnp.einsum("bsd,d->bs", x, w["shared_switch"]))[..., None]
    return out
