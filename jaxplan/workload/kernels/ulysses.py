"""Ulysses attention over a context axis: shards of the sequence become shards of the heads, and back.

Jacobs et al. 2023 (arXiv:2309.14509, section 3.1): an all-to-all of query, key and value before the kernel, one of
its result after. The sequence is in natural order. Fewer key-value heads than devices are repeated before they travel:
every device then gets the ones that its query heads need, and their cotangents are summed where they came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from jaxplan.workload.kernels.attention import Kernel


@dataclass(frozen=True)
class Ulysses:
    """Causal attention on local shards; runs where the axes are manual.

    Attributes:
        kernel: of whole sequences.
        axes: over which the sequence is sharded, of `shards` devices.
    """

    kernel: Kernel
    axes: tuple[str, ...]
    shards: int

    def forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Result, and the logsumexp of this device's share of the local heads, (B, N / shards, S).

        Raises:
            ValueError: the query heads are no multiple of the devices.
        """
        if query.shape[2] % self.shards:
            raise ValueError(
                f"Ulysses attention over {self.shards} devices needs a multiple of as many query heads on each, "
                f"got {query.shape[2]}"
            )
        query, key, value = (self._by_heads(x) for x in (query, self._repeated(key), self._repeated(value)))
        out, logsumexp = self.kernel.forward(query, key, value)
        return self._by_sequence(out), logsumexp

    def backward(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        out: jax.Array,
        logsumexp: jax.Array,
        cotangent: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cotangents of query, key and value."""
        kv_heads = key.shape[2]
        operands = query, self._repeated(key), self._repeated(value), out, cotangent
        query, key, value, out, cotangent = (self._by_heads(x) for x in operands)
        grads = self.kernel.backward(query, key, value, out, logsumexp, cotangent)
        d_query, d_key, d_value = (self._by_sequence(x) for x in grads)
        return d_query, _summed(d_key, kv_heads), _summed(d_value, kv_heads)

    def _repeated(self, x: jax.Array) -> jax.Array:
        """Key-value heads, each as often as it takes to give every device the same number of them."""
        times = self.shards // math.gcd(self.shards, x.shape[2])
        return jnp.repeat(x, times, 2) if times > 1 else x

    def _by_heads(self, x: jax.Array) -> jax.Array:
        """(B, S / shards, N, H) to (B, S, N / shards, H)."""
        return lax.all_to_all(x, self.axes, split_axis=2, concat_axis=1, tiled=True)

    def _by_sequence(self, x: jax.Array) -> jax.Array:
        """(B, S, N / shards, H) to (B, S / shards, N, H)."""
        return lax.all_to_all(x, self.axes, split_axis=1, concat_axis=2, tiled=True)


def _summed(x: jax.Array, heads: int) -> jax.Array:
    """The cotangent of heads of which x has copies, one after the other."""
    if x.shape[2] == heads:
        return x
    copies = x.reshape(*x.shape[:2], heads, x.shape[2] // heads, x.shape[3])
    return jnp.sum(copies.astype(jnp.float32), 3).astype(x.dtype)
