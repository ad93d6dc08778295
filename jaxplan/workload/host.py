"""Arrays in the memory of a device's host, between the moments at which the device computes with them.

The two kinds of memory bear JAX's names. The host's own backend knows both and has one memory: there nothing moves, and
its figures count everything as the device's. Devices that a CUDA compiler has only described know none (jax 0.10.2):
a sharding's kind is dropped there without a word, and what the program itself moves decides where its state lies.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import NamedSharding

DEVICE, HOST = "device", "pinned_host"
Tree = Any


def on_host(shardings: Tree, like: Tree) -> Tree:
    """The shardings with the host's memory for every array of `like` that has dims; counts stay on the device."""

    def moved(sharding: NamedSharding, array: Any) -> NamedSharding:
        return sharding.with_memory_kind(HOST) if array.shape else sharding

    return jax.tree.map(moved, shardings, like)


def offloaded(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer whose state lies in the host's memory between two updates (Ren et al. 2021, arXiv:2101.06840).

    An update fetches the state and puts it back, array by array, so that XLA may move one while it computes with
    another. Unlike in that paper the device computes the update. Shapes are to be asked of `transform` itself: moving
    needs arrays.
    """

    def init(params: Tree) -> Tree:
        return _moved(transform.init(params), jax.memory.Space.Host)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        updates, state = transform.update(updates, _moved(state, jax.memory.Space.Device), params)
        return updates, _moved(state, jax.memory.Space.Host)

    return optax.GradientTransformation(init, update)


def _moved(tree: Tree, space: jax.memory.Space) -> Tree:
    return jax.tree.map(lambda array: jax.device_put(array, space) if array.ndim else array, tree)
