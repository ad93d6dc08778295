"""An update that needs whole matrices, each device with whole layers of its own.

Stored weights are cut along their matrices' sides; an optimizer that multiplies such a matrix by itself (Muon) would
gather every one of them on every device and do the same work everywhere. Here devices exchange sides for layers before
the update and back after it, as in Liu et al. 2025 (arXiv:2502.16982, section 2.3), who gather a matrix on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.workload.layout import Names
from jaxplan.workload.optimizer import MANY, is_matrix, owners

Tree = Any
Route = tuple[PartitionSpec, ...]       # from where an array is stored to where it is updated, one axis moved at a time


def spread(
    transform: optax.GradientTransformation, names: Sequence[Names], like: Tree, stored: Tree, mesh: Mesh
) -> optax.GradientTransformation:
    """The optimizer with the same updates and the same state, whose matrices are whole while it updates them.

    Everything else has to be computed element by element: an update runs on local shards.

    Args:
        names: dims of every parameter, in order.
        like: the parameters, or their shapes.
        stored: NamedShardings of gradients and updates; the state of a parameter lies like its gradient.
    """
    specs = [sharding.spec for sharding in jax.tree.leaves(stored)]
    shapes = [leaf.shape for leaf in jax.tree.leaves(like)]
    routes = [route(*found, mesh) for found in zip(names, shapes, specs, strict=True)]
    state = jax.eval_shape(transform.init, like)
    of_state = [routes[owner] if owner >= 0 else (PartitionSpec(),) for owner in owners(state, like)]
    leaves, moments = Trip(mesh, routes), Trip(mesh, of_state)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        local = jax.shard_map(
            lambda *arguments: transform.update(*arguments),
            mesh=mesh,
            in_specs=(leaves.ends(updates), moments.ends(state), leaves.ends(params)),
            out_specs=(leaves.ends(updates), moments.ends(state)),
            check_vma=False,
        )
        updates, state = local(leaves.out(updates), moments.out(state), leaves.out(params))
        return leaves.home(updates), moments.home(state)

    return optax.GradientTransformation(transform.init, update)


def route(names: Names, shape: Sequence[int], spec: PartitionSpec, mesh: Mesh) -> Route:
    """How a stored array gets to where whole layers of it are; other arrays than matrices stay.

    An axis of a side moves to the layers where it divides what is left of them, else the side is gathered over it. Axes
    that shard nothing take their part of the layers, too, if they can.
    """
    full = [*spec, *[None] * (len(shape) - len(spec))]
    entries: list[tuple[str, ...]] = [(e,) if isinstance(e, str) else tuple(e or ()) for e in full]
    if not is_matrix(names) or "layers" not in names:
        return (spec,)
    many = list(names).index("layers")
    left = shape[many]
    for axis in entries[many]:
        left //= mesh.shape[axis]
    stops = [tuple(entries)]
    sides = [(dim, axis) for dim, name in enumerate(names) if name not in MANY for axis in entries[dim]]
    idle = set(mesh.axis_names) - {axis for entry in entries for axis in entry}
    for dim, axis in [*sides, *((None, axis) for axis in mesh.axis_names if axis in idle)]:
        if dim is not None:
            entries[dim] = tuple(other for other in entries[dim] if other != axis)
        if left % mesh.shape[axis] == 0:
            entries[many], left = (*entries[many], str(axis)), left // mesh.shape[axis]
        if tuple(entries) != stops[-1]:
            stops.append(tuple(entries))
    return tuple(PartitionSpec(*[entry or None for entry in stop]) for stop in stops)


@dataclass(frozen=True)
class Trip:
    """The routes of a tree's leaves."""

    mesh: Mesh
    routes: Sequence[Route]

    def out(self, tree: Tree) -> Tree:
        return self._along(tree, [route[1:] for route in self.routes])

    def home(self, tree: Tree) -> Tree:
        return self._along(tree, [route[-2::-1] for route in self.routes])

    def ends(self, tree: Tree) -> Tree:
        return jax.tree.structure(tree).unflatten([route[-1] for route in self.routes])

    def _along(self, tree: Tree, routes: Sequence[Route]) -> Tree:
        leaves, structure = jax.tree.flatten(tree)
        moved = []
        for leaf, stops in zip(leaves, routes, strict=True):
            for stop in stops:      # XLA exchanges one axis well, and gathers the whole array to move several at once
                leaf = jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, stop))
            moved.append(leaf)
        return structure.unflatten(moved)
