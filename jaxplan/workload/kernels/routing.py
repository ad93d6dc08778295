"""What every exchange of tokens and experts has in common: which experts a token goes to, and where those are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxplan.errors import InputError
from jaxplan.workload.kernels.calls import named
from jaxplan.workload.layout import Layout
from jaxplan.workload.shape import ExpertShape

TOKENS = ("batch", "seq", "embed")
CHOICES = ("batch", "seq", None)
WEIGHTS = ("embed", "expert", "mlp")
RANKED_BY = 2       # best experts of a group by which groups are ranked (arXiv:2412.19437, section 2.1.2)


@dataclass(frozen=True, eq=False)
class Routing:
    """Experts over a mesh, and the groups of tokens for which their use is balanced.

    Attributes:
        shape: experts and how they are chosen.
        groups: groups of tokens in a row; 0: as many as the layout has shards of the sequence.
        layout: mesh and rules; None for one device.
    """

    shape: ExpertShape
    groups: int = 0
    layout: Layout | None = None

    @cached_property
    def sequence_shards(self) -> int:
        return 1 if self.layout is None else self.layout.size(self.layout.axes_of("seq", TOKENS))

    @cached_property
    def expert_axes(self) -> tuple[str, ...]:
        return () if self.layout is None else self.layout.axes_of("expert", WEIGHTS)

    @property
    def shards(self) -> int:
        """Shards of the experts."""
        return 1 if self.layout is None else self.layout.size(self.expert_axes)

    @property
    def groups_here(self) -> int:
        """Groups of a row on one device.

        Raises:
            InputError: the groups are not whole on every device.
        """
        groups = self.groups or self.sequence_shards
        if groups % self.sequence_shards:
            raise InputError(f"{groups} groups of tokens in a row", f"a multiple of its {self.sequence_shards} shards")
        return groups // self.sequence_shards

    @property
    def groups_seen(self) -> int:
        """Groups of a row of an array outside of the kernels: of all shards, unless the layout is manual."""
        manual = self.layout is not None and self.layout.manual
        return self.groups_here * (1 if manual else self.sequence_shards)

    def choose(self, scores: jax.Array) -> jax.Array:
        """scores (B, S, E) to each token's experts, best first, (B, S, k) int32. Not differentiable.

        A kernel, because XLA's partitioner gathers what `top_k` reads.
        """
        spec = PartitionSpec() if self.layout is None else self.layout.spec(CHOICES)
        chosen = named("choose", lambda scores: chosen_by(scores, self.shape), self.layout, (spec,), spec)
        return chosen(lax.stop_gradient(scores))


def chosen_by(scores: jax.Array, shape: ExpertShape) -> jax.Array:
    """The experts (.., k) of the best scores (.., E), among those of the best groups of experts (`ExpertShape`).

    A group is as good as its best two experts (DeepSeek-V3, arXiv:2412.19437, section 2.1.2, "node-limited routing").
    """
    if shape.chosen_groups < shape.choice_groups:
        parts = scores.reshape(*scores.shape[:-1], shape.choice_groups, -1)
        merit = lax.top_k(parts, min(RANKED_BY, parts.shape[-1]))[0].sum(-1)
        best = lax.top_k(merit, shape.chosen_groups)[1]
        among = (best[..., None] == jnp.arange(shape.choice_groups)).any(-2)
        scores = jnp.where(among[..., None], parts, -jnp.inf).reshape(scores.shape)
    return lax.top_k(scores, shape.top_k)[1].astype(jnp.int32)
