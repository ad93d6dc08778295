"""Arrays in the memory of a device's host, between the moments at which the device computes with them.

The two kinds of memory bear JAX's names. The host's own backend knows both and has one memory: there nothing moves, and
its figures count everything as the device's.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import NamedSharding

from jaxplan.workload.optimizer import owners

DEVICE, HOST = "device", "pinned_host"
Tree = Any


def on_host(shardings: Tree, like: Tree) -> Tree:
    """The shardings with the host's memory for every array of `like` that has dims; counts stay on the device."""

    return jax.tree.map(lambda sharding, array: _on_host(sharding) if array.shape else sharding, shardings, like)


def _on_host(sharding: NamedSharding) -> NamedSharding:
    moved = sharding.with_memory_kind(HOST)
    if moved.memory_kind == HOST:
        return moved
    # devices that a CUDA compiler has only described know no memory, and a kind is dropped without a word (jax 0.10.2);
    # an abstract mesh keeps it, and the other arguments say which devices are meant
    return NamedSharding(sharding.mesh.abstract_mesh, sharding.spec, memory_kind=HOST)


def offloaded(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer whose state lies in the host's memory between two updates (Ren et al. 2021, arXiv:2101.06840).

    An update fetches the state and puts it back, array by array: each waits for the gradient that it is needed with, or
    a GPU's scheduler would fetch the whole state at the beginning of the step. Unlike in that paper the device computes
    the update. Shapes are to be asked of `transform` itself: moving needs arrays.
    """

    def init(params: Tree) -> Tree:
        return _moved(transform.init(params), jax.memory.Space.Host)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        state = _moved(_after(updates, state), jax.memory.Space.Device)
        updates, state = transform.update(updates, state, params)
        return updates, _moved(state, jax.memory.Space.Host)

    return optax.GradientTransformation(init, update)


def _after(gradients: Tree, state: Tree) -> Tree:
    """The state, every array of it not before the gradient of its parameter is there."""
    known, (leaves, structure) = jax.tree.leaves(gradients), jax.tree.flatten(state)
    held = [
        jax.lax.optimization_barrier((leaf, known[owner]))[0] if owner >= 0 and leaf.ndim else leaf
        for leaf, owner in zip(leaves, owners(state, gradients), strict=True)
    ]
    return structure.unflatten(held)


def _moved(tree: Tree, space: Any) -> Tree:
    """Every array with dims, in that `jax.memory.Space`."""
    return jax.tree.map(lambda array: jax.device_put(array, space) if array.ndim else array, tree)
