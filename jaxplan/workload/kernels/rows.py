"""Rows of arrays taken by their numbers, with gradients that are lookups, too; and on their way between devices."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NOWHERE = np.iinfo(np.int32).max        # the place of a row that did not come: behind those of all experts


def segments(sizes: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """For each of `count` rows its segment of consecutive ones and its place there; behind all segments `NOWHERE`."""
    ends, row = jnp.cumsum(sizes), jnp.arange(count)
    segment = (row[:, None] >= ends).sum(1)
    known = segment < sizes.shape[0]
    segment = segment.clip(max=sizes.shape[0] - 1)
    return segment, jnp.where(known, row - (ends - sizes)[segment], NOWHERE)


def _rows(values: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.where(index[:, None] >= 0, values[index.clip(min=0)], 0)


@jax.custom_vjp
def rows_by(values: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """Rows of values (M, D) by index (R,), zeros where it is negative; no row is taken twice.

    Args:
        inverse: (M,), the place in the result of each row of `values`, -1: none. So the gradient is a lookup, too.
    """
    return _rows(values, index)


def _rows_forward(values: jax.Array, index: jax.Array, inverse: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _rows(values, index), inverse


def _rows_backward(inverse: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, None, None]:
    return _rows(cotangent, inverse), None, None


rows_by.defvjp(_rows_forward, _rows_backward)


def spread(x: jax.Array, order: jax.Array, rank: jax.Array, k: int) -> jax.Array:
    """x (T, D) once for each of its k choices, in `order` (T k,), of which `rank` is the inverse."""
    spread = jax.custom_vjp(lambda x: x[order // k])

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
        parts = cotangent[rank].reshape(-1, k, cotangent.shape[-1])
        return (parts.sum(1, dtype=jnp.float32).astype(cotangent.dtype),)

    spread.defvjp(lambda x: (x[order // k], None), backward)
    return spread(x)


@dataclass(frozen=True, eq=False)
class Delivery:
    """Rows on their way between devices: those for one device follow each other.

    Attributes:
        axes: of the mesh, with n devices in all.
        count: N, rows of this device.
        moved: (n, n), rows from each device to each. me: this one.
        ragged: whether exactly these rows move, into an array that they fill from the start; else N for each device.
    """

    axes: tuple[str, ...]
    count: int
    moved: jax.Array
    me: jax.Array
    ragged: bool

    def there(self, rows: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """(N, D) to the rows that come here, (n N, D), and for each the device and the place there that it is from."""
        n, came = self.moved.shape[0], self.moved[:, self.me]
        if self.ragged:
            room = jnp.zeros((n * self.count, rows.shape[1]), rows.dtype)
            received = self._ragged(rows, room, self.moved)
            source, place = segments(came, n * self.count)
            return received, (source, place)
        send, inverse = self._padded()
        parts = rows_by(rows, send.reshape(-1), inverse).reshape(n, self.count, -1)
        received = lax.all_to_all(parts, self.axes, 0, 0, tiled=True)
        place = jnp.arange(self.count)[None, :]
        place = jnp.where(place < came[:, None], place, NOWHERE)
        source = jnp.repeat(jnp.arange(n), self.count)
        return received.reshape(n * self.count, -1), (source, place.reshape(-1))

    def back(self, rows: jax.Array) -> jax.Array:
        """The way back: (n N, D) to (N, D)."""
        n = self.moved.shape[0]
        if self.ragged:
            return self._ragged(rows, jnp.zeros((self.count, rows.shape[1]), rows.dtype), self.moved.T)
        parts = lax.all_to_all(rows.reshape(n, self.count, -1), self.axes, 0, 0, tiled=True)
        send, inverse = self._padded()
        return rows_by(parts.reshape(n * self.count, -1), inverse, send.reshape(-1))

    def _ragged(self, rows: jax.Array, room: jax.Array, moved: jax.Array) -> jax.Array:
        """Rows to all devices, `moved` (n, n) of them from each to each; those for one are in a row on either side."""
        mine, theirs = moved[self.me], moved[:, self.me]
        starts = jnp.cumsum(mine) - mine
        there = (jnp.cumsum(moved, 0) - moved)[self.me]
        return lax.ragged_all_to_all(rows, room, starts, mine, there, theirs, axis_name=self.axes)

    def _padded(self) -> tuple[jax.Array, jax.Array]:
        """The row at each place (n, N) of what is sent, -1: none; and the place of each row, (N,)."""
        mine = self.moved[self.me]
        starts = jnp.cumsum(mine) - mine
        place = jnp.arange(self.count)
        send = jnp.where(place < mine[:, None], starts[:, None] + place, -1)
        to, offset = segments(mine, self.count)
        return send, to * self.count + offset
