"""The order in which a program has its sequence: natural, or zig-zag over the context axis.

Causal attention gives the last positions the most work. Cut into 2n chunks of which shard i of n holds chunks i and
2n - 1 - i, every shard has the same (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2, "context parallelism").
Ring attention computes in this order; everything else in a decoder looks at one position at a time, so that tokens
and targets are put in order once, and positions say where a token was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxplan.errors import InputError
from jaxplan.workload.kernels.calls import named
from jaxplan.workload.layout import Layout, Names


def zigzag(seq: int, shards: int) -> np.ndarray:
    """The position at each place of a sequence (seq,) in zig-zag order.

    Raises:
        InputError: the sequence has no 2 x shards equal chunks.
    """
    return _positions(np.arange(seq), _chunk(seq, shards), shards)


def _chunk(seq: int, shards: int) -> int:
    if seq % (2 * shards):
        raise InputError(
            f"sequence {seq} over context {shards}", f"a multiple of 2 x {shards}: two equal chunks a device"
        )
    return seq // (2 * shards)


def _positions(places: Any, chunk: int, shards: int) -> Any:
    """Of places in a NumPy or JAX array, in closed form: a long sequence needs no table in the program."""
    place, offset = places // chunk, places % chunk
    shard, late = place // 2, place % 2
    return (shard + late * (2 * shards - 1 - 2 * shard)) * chunk + offset


@dataclass(frozen=True, eq=False)
class Order:
    """A program's order of the sequence.

    Attributes:
        shards: into how many shards a zig-zag order goes; 1: the natural order.
    """

    layout: Layout | None
    shards: int = 1

    @classmethod
    def of(cls, layout: Layout | None, context: str) -> Order:
        """The order that context attention of that kind (`ring`, `ulysses`) computes in."""
        if layout is None or context != "ring":
            return cls(layout)
        return cls(layout, layout.size(layout.context_axes))

    def apply(self, x: jax.Array, names: Names) -> jax.Array:
        """x with its dim `seq`, a whole sequence in natural order, in this order; its dims are named `names`."""
        if self.layout is None or self.shards == 1:
            return x
        layout, dim = self.layout, list(names).index("seq")
        whole = [name if name != "seq" else None for name in names]
        cut = (*x.shape[:dim], 2 * self.shards, _chunk(x.shape[dim], self.shards), *x.shape[dim + 1 :])

        def reorder(x: jax.Array) -> jax.Array:
            # every device has whole sequences, and keeps them: left open, XLA shards them here and exchanges chunks
            early, late = jnp.split(layout.constrain(x, whole).reshape(cut), 2, dim)
            return layout.constrain(jnp.stack([early, jnp.flip(late, dim)], dim + 1).reshape(x.shape), whole)

        return named("zigzag", reorder)(x)

    def positions(self, length: int) -> jax.Array:
        """The position of every token of a whole sequence of that length, in this order, int32."""
        places = jnp.arange(length)
        return places if self.shards == 1 else _positions(places, _chunk(length, self.shards), self.shards)
