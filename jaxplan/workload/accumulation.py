"""Gradients over microbatches: added up where they are stored, or apart on every replica and reduced once a step.

Replicas are shards of the batch that hold the same parameters (the axis `data`). Left to XLA's partitioner their
gradients are summed in every microbatch. `apart` runs all microbatches inside of a shard_map that is manual over the
replicas' axes only, so that each adds up its own; `reduced` sums the results, scattered where the optimizer's state is
(ZeRO-1; Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.workload.layout import Layout
from jaxplan.workload.storage import hold, inner

Tree = Any
Loss = Callable[[Tree, Tree], jax.Array]
Gradients = Callable[[Tree, Tree], tuple[jax.Array, Tree]]


@dataclass(frozen=True, eq=False)
class Microbatches:
    """How the batch is cut.

    Attributes:
        rows: for each array of the batch, whether its leading dim is the batch: the others are in every part, whole.
        shardings: of the whole batch; None without a mesh.
    """

    count: int
    rows: Sequence[bool]
    shardings: Tree = None

    def split(self, batch: Tree) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Tree]]:
        """The arrays that are cut, as (microbatches, rows, ...), and how to put one part of each into a batch."""
        leaves, structure = jax.tree.flatten(batch)
        shardings = jax.tree.leaves(self.shardings) or [None] * len(leaves)
        cut = [i for i, has_rows in enumerate(self.rows) if has_rows]

        def merge(parts: list[jax.Array]) -> Tree:
            replaced = dict(zip(cut, parts, strict=True))
            return structure.unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])

        return [self._split(leaves[i], shardings[i]) for i in cut], merge

    def _split(self, array: jax.Array, sharding: Any) -> jax.Array:
        # the microbatch is the minor factor of the batch, so that every device's rows stay where they are
        parts = array.reshape(array.shape[0] // self.count, self.count, *array.shape[1:])
        return hold(jnp.swapaxes(parts, 0, 1), None if sharding is None else inner(sharding))


def accumulated(loss: Loss, microbatches: Microbatches, shardings: Tree) -> Gradients:
    """(params, batch) to the mean loss over microbatches and its gradients, added up in float32 in these shardings."""

    def gradients(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        if microbatches.count == 1:
            value, grads = jax.value_and_grad(loss)(params, batch)
            return value, hold(grads, shardings)
        parts, merge = microbatches.split(batch)

        def add(total: tuple[jax.Array, Tree], part: list[jax.Array]) -> tuple[tuple[jax.Array, Tree], None]:
            value, grads = jax.value_and_grad(loss)(params, merge(part))
            summed = jax.tree.map(lambda a, g: a + g.astype(jnp.float32), total[1], hold(grads, shardings))
            return (total[0] + value.astype(jnp.float32), hold(summed, shardings)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        (value, grads), _ = lax.scan(add, (jnp.zeros((), jnp.float32), hold(zeros, shardings)), parts)
        mean = jax.tree.map(lambda g, p: (g / microbatches.count).astype(p.dtype), grads, params)
        return value / microbatches.count, hold(mean, shardings)

    return gradients


@dataclass(frozen=True, eq=False)
class Replicas:
    """The axes whose devices have the same parameters and other rows.

    Attributes:
        layout: of the whole program.
        stored: shardings of the parameters, none over the replicas.
        reduced: shardings that the summed gradients get: those of the parameters, or further divided over the replicas.
    """

    layout: Layout
    axes: tuple[str, ...]
    stored: Tree
    reduced: Tree

    @property
    def count(self) -> int:
        return self.layout.size(self.axes)

    def within(self, shardings: Tree) -> Tree:
        """Shardings as they read inside of `apart`; to be asked for there."""
        mesh = jax.sharding.get_abstract_mesh()

        def cut(entry: Any) -> Any:
            held = entry if isinstance(entry, tuple) else (entry,)
            return tuple(axis for axis in held if axis is not None and axis not in self.axes) or None

        return jax.tree.map(lambda s: NamedSharding(mesh, PartitionSpec(*map(cut, s.spec))), shardings)

    def once(self, gradients: Gradients, rows: Sequence[bool]) -> Gradients:
        """Mean of the replicas' own loss and gradients, summed over them once.

        Args:
            gradients: of one replica, on its rows; traced inside of a manual region over the replicas' axes.
            rows: for each array of the batch, whether its leading dim is the batch.
        """
        over = PartitionSpec(self.axes)

        def alone(params: Tree, batch: Tree) -> Tree:
            # a leading dim of replicas: what belongs to one replica only is no array without it
            value, grads = gradients(params, batch)
            whole = jax.tree.map(lambda g, s: hold(g[None], inner(s)), grads, self.within(self.stored))
            return value[None], whole

        def all_of_them(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            structure = jax.tree.structure(batch)
            cut = structure.unflatten([over if has_rows else PartitionSpec() for has_rows in rows])
            run = jax.shard_map(
                alone,
                mesh=self.layout.mesh,
                in_specs=(PartitionSpec(), cut),
                out_specs=over,
                axis_names=set(self.axes),
                check_vma=False,
            )
            return self._mean(*run(params, batch))

        return all_of_them

    def _mean(self, values: jax.Array, grads: Tree) -> tuple[jax.Array, Tree]:
        """The sum over the leading dim of replicas, one exchange for each array."""
        kept = jax.tree.map(lambda s: s.spec, self.reduced)

        def add(value: jax.Array, grads: Tree) -> tuple[jax.Array, Tree]:
            summed = [
                self._summed(g[0], spec) / self.count
                for g, spec in zip(jax.tree.leaves(grads), jax.tree.leaves(kept), strict=True)
            ]
            return lax.psum(value[0], self.axes) / self.count, jax.tree.structure(grads).unflatten(summed)

        own = jax.tree.map(lambda s: PartitionSpec(self.axes, *s.spec), self.stored)
        run = self.layout.mapped(add, (PartitionSpec(self.axes), own), (PartitionSpec(), kept))
        return run(values, grads)

    def _summed(self, grad: jax.Array, spec: PartitionSpec) -> jax.Array:
        """One replica's gradient summed over all, and scattered along the dim that they divide."""
        for position, entry in enumerate(spec):
            if entry is not None and set(self.axes) <= set(entry if isinstance(entry, tuple) else (entry,)):
                return lax.psum_scatter(grad, self.axes, scatter_dimension=position, tiled=True)
        return lax.psum(grad, self.axes)
