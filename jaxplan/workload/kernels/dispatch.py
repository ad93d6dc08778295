"""Tokens to experts and back, each expert taking at most its capacity: kernels that say what they exchange.

Rows of the batch lie over the axis `expert` outside of the experts, the experts inside. Each device sorts its tokens by
expert, sends every shard of the experts its part, and gets the results back (Lepikhin et al. 2020, arXiv:2006.16668,
section 3.2; their dispatch multiplies by one-hot matrices, this one looks up rows): one all-to-all on the way there and
one on the way back, forward and backward. The transpose of either way is the other, with weights where tokens are.

Shapes: x (B, S, D); E experts, k choices a token, n shards of the experts; a row has G groups of S / G tokens, each of
which has C slots at every expert. Choices beyond them are dropped, first choices last. Experts lead, as their matrices
want: what is exchanged is a few large blocks, and nothing is transposed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jaxplan.errors import InputError
from jaxplan.workload.kernels.calls import named
from jaxplan.workload.kernels.routing import CHOICES, TOKENS, Routing, chosen_by

SLOTS = ("expert", "batch", "seq", "slot", "embed")     # `seq`: the groups, which lie where their tokens lie


class Routes(NamedTuple):
    """Where tokens go. Rows are counted on one device: these indices mean nothing elsewhere.

    Attributes:
        experts: (B, S, k) int32, the experts of a token, best first.
        slots: (B, S, k) int32, the row of what the device gets back that answers each choice; -1: it was dropped.
        sources: (n, E / n, B, G, C) int32, the choice (row of x times k, plus its rank) that takes each slot; -1: none.
    """

    experts: jax.Array
    slots: jax.Array
    sources: jax.Array


@dataclass(frozen=True, eq=False)
class Exchange(Routing):
    """The exchange of a mixture of experts whose experts have a capacity.

    Attributes:
        capacity_factor: slots of an expert, as a multiple of its even share of a group's choices.
    """

    capacity_factor: float = 1.25

    def capacity(self, tokens: int) -> int:
        """Slots that each expert has for a group of so many tokens (the same, section 2.2)."""
        even = tokens * self.shape.top_k / self.shape.experts
        return min(tokens, math.ceil(self.capacity_factor * even))

    def route(self, scores: jax.Array) -> Routes:
        """scores (B, S, E) to each token's experts and slots. Not differentiable."""
        scores_spec, choices, sources, _, _ = self._specs()
        out = (choices, choices, sources)
        return Routes(*named("route", self._route, self.layout, (scores_spec,), out)(lax.stop_gradient(scores)))

    def dispatch(self, x: jax.Array, routes: Routes) -> jax.Array:
        """x (B, S, D) to what the experts get, (E, B, G, C, D), zeros in empty slots."""
        tokens, choices, sources, slots, _ = self._specs()
        there = named("dispatch_forward", self._there, self.layout, (tokens, sources), slots)
        back = named("dispatch_backward", self._summed, self.layout, (slots, choices), tokens)

        def forward(x: jax.Array, routes: Routes) -> tuple[jax.Array, Routes]:
            return there(x, routes.sources), routes

        def backward(routes: Routes, cotangent: jax.Array) -> tuple[jax.Array, Routes]:
            return back(cotangent, routes.slots), _no_cotangent(routes)

        send = jax.custom_vjp(lambda x, routes: there(x, routes.sources))
        send.defvjp(forward, backward)
        return send(x, routes)

    def combine(self, fed: jax.Array, gates: jax.Array, routes: Routes) -> jax.Array:
        """What the experts return (E, B, G, C, D), weighted by gates (B, S, k) and added up for each token, (B, S, D).

        What the gates' gradient needs, the results back where their tokens are, bears the tag `mlp_output`.
        """
        tokens, choices, sources, slots, arrived = self._specs()
        back = named("combine_forward", self._weighted, self.layout, (slots, choices, choices), (tokens, arrived))
        operands = (choices, arrived, tokens, choices, sources)
        there = named("combine_backward", self._unweighted, self.layout, operands, (slots, choices))

        def forward(fed: jax.Array, gates: jax.Array, routes: Routes) -> tuple[jax.Array, tuple]:
            out, results = back(fed, gates, routes.slots)
            return out, (gates, checkpoint_name(results, "mlp_output"), routes)

        def backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, Routes]:
            gates, results, routes = residuals
            d_fed, d_gates = there(gates, results, cotangent, routes.slots, routes.sources)
            return d_fed, d_gates, _no_cotangent(routes)

        receive = jax.custom_vjp(lambda fed, gates, routes: back(fed, gates, routes.slots)[0])
        receive.defvjp(forward, backward)
        return receive(fed, gates, routes)

    def _specs(self) -> tuple[PartitionSpec, PartitionSpec, PartitionSpec, PartitionSpec, PartitionSpec]:
        """Of tokens, choices, sources, slots, and of results that are back on their tokens' device."""
        if self.layout is None:
            nowhere = PartitionSpec()
            return nowhere, nowhere, nowhere, nowhere, nowhere
        spec = self.layout.spec
        rows = spec(("batch", "seq"))
        blocks = PartitionSpec(None, None, *rows)
        return spec(TOKENS), spec(CHOICES), blocks, spec(SLOTS), blocks

    # what follows runs on one device's arrays: b rows, s tokens of each, g groups

    def _route(self, scores: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen = chosen_by(scores, self.shape)
        (b, s, k), g, experts = chosen.shape, self.groups_here, self.shape.experts
        if s % g:
            raise InputError(f"{s} tokens of a row in {g} groups", "groups that divide them")
        tokens, slots = s // g, self.capacity(s // g)
        # by rank and then by token: first choices are served first
        queue = jnp.swapaxes(chosen.reshape(b * g, tokens, k), 1, 2).reshape(b * g, k * tokens)
        order = jnp.argsort(queue, axis=1, stable=True)
        ids = jnp.arange(experts)
        starts, ends = ((before(queue[..., None], ids)).sum(1) for before in (jnp.less, jnp.less_equal))
        group = jnp.arange(b * g)[:, None]

        place = jnp.argsort(order, axis=1) - jnp.take_along_axis(starts, queue, 1)
        row = (queue * (b * g) + group) * slots + place
        row = jnp.where(place < slots, row, -1).reshape(b, g, k, tokens)
        answer = jnp.swapaxes(row, 2, 3).reshape(b, s, k)

        taken = starts[..., None] + jnp.arange(slots)
        entry = jnp.take_along_axis(order, taken.reshape(b * g, -1).clip(max=k * tokens - 1), 1).reshape(taken.shape)
        source = (group[..., None] * tokens + entry % tokens) * k + entry // tokens
        source = jnp.moveaxis(jnp.where(taken < ends[..., None], source, -1), 1, 0)
        source = source.reshape(self.shards, experts // self.shards, b, g, slots)
        return chosen, answer.astype(jnp.int32), source.astype(jnp.int32)

    def _there(self, x: jax.Array, sources: jax.Array) -> jax.Array:
        return self._at_experts(_taken(x, sources // self.shape.top_k))

    def _at_experts(self, sent: jax.Array) -> jax.Array:
        """(n, E / n, b, g, C, D), for each shard of the experts, to what this one gets, (E / n, n b, g, C, D)."""
        received = jnp.swapaxes(self._swapped(sent), 0, 1)
        return received.reshape(received.shape[0], -1, *received.shape[3:])

    def _at_tokens(self, fed: jax.Array) -> jax.Array:
        """The way back: (E / n, n b, g, C, D) to (n, E / n, b, g, C, D)."""
        parts = fed.reshape(fed.shape[0], self.shards, -1, *fed.shape[2:])
        return self._swapped(jnp.swapaxes(parts, 0, 1))

    def _swapped(self, parts: jax.Array) -> jax.Array:
        return lax.all_to_all(parts, self.expert_axes, 0, 0, tiled=True) if self.expert_axes else parts

    def _summed(self, cotangent: jax.Array, slots: jax.Array) -> jax.Array:
        results = self._at_tokens(cotangent)
        return sum(_answers(results, slots)).astype(cotangent.dtype)    # type: ignore[union-attr]

    def _weighted(self, fed: jax.Array, gates: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        results = self._at_tokens(fed)
        out = sum(gates[..., j, None] * answer for j, answer in enumerate(_answers(results, slots)))
        return out.astype(fed.dtype), results     # type: ignore[union-attr]

    def _unweighted(
        self, gates: jax.Array, results: jax.Array, cotangent: jax.Array, slots: jax.Array, sources: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        weight = gates.reshape(-1)[sources.clip(min=0)][..., None]
        sent = _taken(cotangent, sources // self.shape.top_k) * weight.astype(cotangent.dtype)
        wide = cotangent.astype(jnp.float32)
        d_gates = jnp.stack([(wide * answer).sum(-1) for answer in _answers(results, slots)], -1)
        return self._at_experts(sent), d_gates.astype(gates.dtype)


def _taken(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Rows of x (.., D) by their numbers, zeros where those are negative."""
    flat = x.reshape(-1, x.shape[-1])
    return jnp.where(rows[..., None] >= 0, flat[rows.clip(min=0)], 0)


def _answers(results: jax.Array, slots: jax.Array) -> list[jax.Array]:
    """What came back for each of the k choices, (b, s, D) in float32, one at a time."""
    return [_taken(results, slots[..., j]).astype(jnp.float32) for j in range(slots.shape[-1])]


def _no_cotangent(routes: Routes) -> Routes:
    return Routes(*(np.zeros(r.shape, jax.dtypes.float0) for r in routes))      # type: ignore[arg-type]
