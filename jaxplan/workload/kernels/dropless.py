"""Experts that take whatever comes: one kernel from tokens to what their experts make of them.

Tokens are sorted by expert, exchanged over the axis `expert`, and multiplied in groups, one an expert (Gale et al.
2022, arXiv:2211.15841, section 5: no token is dropped and no group padded to another's size). How many arrive is known
when they do: the exchange is `ragged_all_to_all`, and where that does not exist (CPU) an all-to-all padded to the most
that can come. Either way a device has room for every token of every device that shares its experts, n times its own.
That room is not kept for the backward pass: its kernel makes it again, exchange included, so that it exchanges four
times where the forward one does twice.

On a TPU a kernel multiplies the rows of each group; on a GPU XLA multiplies all that there is room for, by every expert
of the device (jaxlib 0.10.2): in all E times the work that is needed.

With tensor axes the sequence is gathered first: each of them exchanges all tokens of its rows.

Shapes: x (B, S, D); E experts, k choices a token, n shards of the experts; on one device T tokens, N = T k rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxplan.plan.sharding import TENSOR_AXES
from jaxplan.workload.activations import hidden
from jaxplan.workload.kernels.calls import named
from jaxplan.workload.kernels.routing import CHOICES, TOKENS, WEIGHTS, Routing
from jaxplan.workload.kernels.rows import Delivery, rows_by, spread
from jaxplan.workload.shape import Activation

MATRICES = ("up", "gate", "down")
WITHOUT_RAGGED = ("cpu",)       # platforms whose XLA has no ragged all-to-all (jaxlib 0.10, 0.12)
Matrices = Mapping[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Dropless(Routing):
    """The experts of a model, without a capacity; `activation` is that of their hidden values."""

    activation: Activation = "swiglu"

    def feed(self, x: jax.Array, gates: jax.Array, chosen: jax.Array, matrices: Matrices) -> jax.Array:
        """What the chosen experts (B, S, k) make of x (B, S, D), weighted by gates (B, S, k) and added up: (B, S, D).

        Args:
            matrices: of the experts: `up`, `down` and, where the activation is gated, `gate`, each (D, E, F).
        """
        names, kind = tuple(matrices), "gated_experts" if "gate" in matrices else "experts"
        tokens, choices, used, stored = self._specs()
        operands = (tokens, choices, choices, *[used] * len(names))
        forward = named(f"{kind}_forward", lambda *o: self._forward(names, *o), self.layout, operands, tokens)
        results = (tokens, choices, *[stored] * len(names))
        backward = named(
            f"{kind}_backward", lambda *o: self._backward(names, *o), self.layout, (*operands, tokens), results
        )

        def feed_backward(residuals: tuple, cotangent: jax.Array) -> tuple:
            d_x, d_gates, *d_matrices = backward(*residuals, cotangent)
            return d_x, d_gates, np.zeros(chosen.shape, jax.dtypes.float0), *d_matrices

        feed = jax.custom_vjp(lambda *operands: forward(*operands))
        feed.defvjp(lambda *operands: (forward(*operands), operands), feed_backward)
        return feed(x, gates, chosen, *matrices.values())

    def _specs(self) -> tuple[PartitionSpec, PartitionSpec, PartitionSpec, PartitionSpec]:
        """Of tokens, choices, a matrix as it is computed with, and its gradient: scattered to where it is stored."""
        if self.layout is None:
            nowhere = PartitionSpec()
            return nowhere, nowhere, nowhere, nowhere
        spec = self.layout.spec
        used = PartitionSpec(*spec((*WEIGHTS, "batch", "seq"))[:3])
        stored = PartitionSpec(*self.layout.parameter_spec(("layers", *WEIGHTS))[1:])
        return spec(TOKENS), spec(CHOICES), used, stored

    @cached_property
    def _between(self) -> tuple[str, ...]:
        """Tensor axes over which the sequence is sharded outside of the experts."""
        return () if self.layout is None else self.layout.sequence_axes(TOKENS)

    @cached_property
    def _tensor(self) -> tuple[str, ...]:
        return () if self.layout is None else self.layout.axes_of("mlp", WEIGHTS)

    # what follows runs on one device's arrays

    def _forward(self, names: tuple[str, ...], x: jax.Array, *operands: jax.Array) -> jax.Array:
        gates, chosen, *matrices = operands
        x, gates, chosen = self._entered(x), self._entered(gates), self._entered(chosen)
        return self._added(self._fed(x, gates, chosen, dict(zip(names, matrices, strict=True))))

    def _backward(self, names: tuple[str, ...], x: jax.Array, *operands: jax.Array) -> tuple[jax.Array, ...]:
        gates, chosen, *matrices, cotangent = operands
        chosen = self._entered(chosen)

        def fed(x: jax.Array, gates: jax.Array, *matrices: jax.Array) -> jax.Array:
            return self._fed(x, gates, chosen, dict(zip(names, matrices, strict=True)))

        _, pull = jax.vjp(fed, self._entered(x), self._entered(gates), *matrices)
        d_x, d_gates, *d_matrices = pull(self._entered(cotangent))
        return self._added(d_x), self._added(d_gates), *map(self._reduced, d_matrices)

    def _entered(self, value: jax.Array) -> jax.Array:
        """Of a shard of the sequence over tensor axes the whole."""
        return lax.all_gather(value, self._between, axis=1, tiled=True) if self._between else value

    def _added(self, partial: jax.Array) -> jax.Array:
        """Sums over parts of the hidden dim, added up over the tensor axes, and a shard of the sequence of them."""
        if self._between:
            return lax.psum_scatter(partial, self._between, scatter_dimension=1, tiled=True)
        return lax.psum(partial, self._tensor) if self._tensor else partial

    def _reduced(self, gradient: jax.Array) -> jax.Array:
        """A matrix's gradient summed over everything that has other tokens, scattered to where the matrix is stored.

        In a manual layout whoever gathered the matrix does that.
        """
        if self.layout is None or self.layout.manual:
            return gradient
        stored = self.layout.axes_of("embed", WEIGHTS)
        others = (*self.layout.axes_of("batch", TOKENS), *self.layout.axes_of("seq", TOKENS))
        others = tuple(a for a in others if a not in (*stored, *self.expert_axes, *TENSOR_AXES))
        if stored:
            gradient = lax.psum_scatter(gradient, stored, scatter_dimension=0, tiled=True)
        return lax.psum(gradient, others) if others else gradient

    def _fed(self, x: jax.Array, gates: jax.Array, chosen: jax.Array, matrices: Matrices) -> jax.Array:
        """The same on whole sequences, with this device's part of the hidden dim."""
        count, k = gates.size, self.shape.top_k
        queue = chosen.reshape(count)
        order = jnp.argsort(queue, stable=True)
        rank = jnp.argsort(order)
        rows = spread(x.reshape(-1, x.shape[-1]), order, rank, k)
        sizes = (queue[:, None] == jnp.arange(self.shape.experts)).sum(0).astype(jnp.int32)
        results = self._exchanged(rows, sizes, lambda rows, groups: self._multiplied(rows, groups, matrices))
        answers = rows_by(results, rank, order).reshape(-1, k, x.shape[-1])
        out = jnp.einsum("tkd,tk->td", answers.astype(jnp.float32), gates.reshape(-1, k).astype(jnp.float32))
        return out.astype(x.dtype).reshape(x.shape)

    def _multiplied(self, rows: jax.Array, groups: jax.Array, matrices: Matrices) -> jax.Array:
        """Rows sorted by expert through their experts; what is behind the last group becomes zeros."""
        real = (jnp.arange(rows.shape[0]) < groups.sum())[:, None]

        def made(name: str) -> jax.Array:
            return jnp.where(real, lax.ragged_dot(rows, jnp.swapaxes(matrices[name], 0, 1), groups), 0)

        down = jnp.transpose(matrices["down"], (1, 2, 0))
        return jnp.where(real, lax.ragged_dot(hidden(self.activation, made), down, groups), 0)

    def _exchanged(
        self, rows: jax.Array, sizes: jax.Array, work: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """`work` done where the experts are: rows (N, D) sorted by expert to the same rows, worked on.

        Args:
            sizes: (E,), rows of each expert.
            work: (rows sorted by expert, rows of each expert of this device) to rows.
        """
        if not self.expert_axes:
            return work(rows, sizes)
        n, me = self.shards, lax.axis_index(self.expert_axes)
        counts = lax.all_gather(sizes, self.expert_axes).reshape(n, n, -1)      # from, to, expert there
        delivery = Delivery(self.expert_axes, rows.shape[0], counts.sum(-1), me, self._ragged)
        here = lax.dynamic_index_in_dim(counts, me, 1, keepdims=False)          # from, expert here
        received, origin = delivery.there(rows)
        ends = jnp.cumsum(here, 1)
        source, place = origin
        expert = (place[:, None] >= ends[source]).sum(1)        # behind the last one where nothing came
        order = jnp.argsort(expert, stable=True)
        rank = jnp.argsort(order)
        return delivery.back(rows_by(work(rows_by(received, order, rank), here.sum(0)), rank, order))

    @property
    def _ragged(self) -> bool:
        return self.layout is not None and self.layout.mesh.devices.flat[0].platform not in WITHOUT_RAGGED
