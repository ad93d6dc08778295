"""Ring attention over a context axis: queries stay, keys and values go round (Liu et al. 2023, arXiv:2310.01889).

Local arrays are shards of a sequence in zig-zag order (`kernels.zigzag`): device i has chunks i and 2n - 1 - i. Its own
block is causal. In step j it holds the keys of device i - j: those of an earlier device (j <= i) it attends with all
its queries, but only their first chunk; those of a later one with its second chunk of queries only. Either way half a
block without any mask, so all devices work alike, and no masked score is ever computed.

Each transfer is under way while the step before it computes: what a step passes on does not depend on its work.
The gradients of keys and values travel along as float32 sums: rounded to 8 bits at each of n - 1 hops they would lose
what the kernels' float32 accumulators keep. Only on a ring of two, where the single hop carries no sum yet, they travel
as the kernel made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from jaxplan.workload.kernels.attention import Kernel

Pair = tuple[jax.Array, jax.Array]

NOTHING = -1e30     # logsumexp of no keys: finite, so that the difference of two is a number


@dataclass(frozen=True)
class Ring:
    """Causal attention on local shards; runs where the axes are manual.

    Attributes:
        kernel: of a block of queries and keys.
        axes: of the ring, of `shards` devices, at least 2.
    """

    kernel: Kernel
    axes: tuple[str, ...]
    shards: int

    def forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> Pair:
        """Result and logsumexp. n - 1 hops of key and value."""
        held = self._passed((key, value))
        out, logsumexp = self.kernel.forward(query, key, value)
        total = out.astype(jnp.float32), logsumexp

        def step(carry: tuple[Pair, Pair], number: jax.Array) -> tuple[tuple[Pair, Pair], None]:
            total, held = carry
            coming = self._passed(held)
            return (self._attended(total, query, held, number), coming), None

        if self.shards > 2:
            (total, held), _ = lax.scan(step, (total, held), jnp.arange(1, self.shards - 1))
        out, logsumexp = self._attended(total, query, held, self.shards - 1)
        return out.astype(query.dtype), logsumexp

    def backward(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        out: jax.Array,
        logsumexp: jax.Array,
        cotangent: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cotangents of query, key and value: n - 1 hops of key and value, and n - 1 of their cotangents.

        With the logsumexp and the result of the whole sequence a block's backward pass gives that block's exact part.
        """
        rows = query, out, logsumexp, cotangent
        held = self._passed((key, value))
        own = self.kernel.backward(query, key, value, out, logsumexp, cotangent)
        d_query = own[0].astype(jnp.float32)

        def step(carry: tuple[jax.Array, Pair, Pair], number: jax.Array | int) -> tuple[jax.Array, Pair]:
            d_query, held, grads = carry
            coming = self._passed(grads)
            d_query, part = self._pulled(d_query, rows, held, number)
            return d_query, _added(coming, part)

        def loop(carry: tuple[jax.Array, Pair, Pair], number: jax.Array) -> tuple[tuple, None]:
            coming = self._passed(carry[1])
            d_query, grads = step(carry, number)
            return (d_query, coming, grads), None

        d_query, grads = self._pulled(d_query, rows, held, 1)
        if self.shards > 2:
            carry = d_query, self._passed(held), _wide(grads)
            if self.shards > 3:
                carry, _ = lax.scan(loop, carry, jnp.arange(2, self.shards - 1))
            d_query, grads = step(carry, self.shards - 1)
        d_key, d_value = _added(_wide(self._passed(grads)), own[1:])
        return d_query.astype(query.dtype), d_key.astype(key.dtype), d_value.astype(value.dtype)

    def _passed(self, pair: Pair) -> Pair:
        """What the device before this one has."""
        hops = [(device, (device + 1) % self.shards) for device in range(self.shards)]
        return lax.ppermute(pair[0], self.axes, hops), lax.ppermute(pair[1], self.axes, hops)

    def _is_earlier(self, number: jax.Array | int) -> jax.Array:
        """Whether the keys held in step `number` are those of an earlier device."""
        return number <= lax.axis_index(self.axes)

    def _attended(self, total: Pair, query: jax.Array, held: Pair, number: jax.Array | int) -> Pair:
        """Result (float32) and logsumexp with the keys of one more step."""
        key, value = held
        half = query.shape[1] // 2

        def earlier() -> Pair:
            return self.kernel.forward(query, key[:, :half], value[:, :half], causal=False)

        def later() -> Pair:
            out, logsumexp = self.kernel.forward(query[:, half:], key, value, causal=False)
            return _padded(out, before=half), _padded(logsumexp, before=half, dim=2, with_=NOTHING)

        return _merged(total, lax.cond(self._is_earlier(number), earlier, later))

    def _pulled(
        self,
        d_query: jax.Array,
        rows: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
        held: Pair,
        number: jax.Array | int,
    ) -> tuple[jax.Array, Pair]:
        """The cotangent of query (float32) with one more step's part, and that step's of the keys and values held."""
        query, out, logsumexp, cotangent = rows
        key, value = held
        half = query.shape[1] // 2

        def earlier() -> tuple[jax.Array, jax.Array, jax.Array]:
            dq, dk, dv = self.kernel.backward(
                query, key[:, :half], value[:, :half], out, logsumexp, cotangent, causal=False
            )
            return dq, _padded(dk, after=half), _padded(dv, after=half)

        def later() -> tuple[jax.Array, jax.Array, jax.Array]:
            dq, dk, dv = self.kernel.backward(
                query[:, half:],
                key,
                value,
                out[:, half:],
                logsumexp[:, :, half:],
                cotangent[:, half:],
                causal=False,
            )
            return _padded(dq, before=half), dk, dv

        dq, dk, dv = lax.cond(self._is_earlier(number), earlier, later)
        return d_query + dq, (dk, dv)


def _padded(x: jax.Array, before: int = 0, after: int = 0, dim: int = 1, with_: float = 0.0) -> jax.Array:
    """Half of a sequence, which is dimension `dim`, beside a half in which there is nothing."""
    widths = [(before, after, 0) if i == dim else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.asarray(with_, x.dtype), widths)


def _merged(total: Pair, part: Pair) -> Pair:
    """Softmax averages over two sets of keys as the average over both, weighted by their sums of exponentials."""
    (out, logsumexp), (more, more_sum) = total, part
    both = jnp.logaddexp(logsumexp, more_sum)
    return out * _weights(logsumexp - both) + more * _weights(more_sum - both), both


def _weights(exponents: jax.Array) -> jax.Array:
    """exp of (B, N, S), as factors of a result (B, S, N, H)."""
    return jnp.swapaxes(jnp.exp(exponents), 1, 2)[..., None]


def _wide(pair: Pair) -> Pair:
    return pair[0].astype(jnp.float32), pair[1].astype(jnp.float32)


def _added(total: Pair, part: Pair) -> Pair:
    return total[0] + part[0], total[1] + part[1]
