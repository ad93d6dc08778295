"""A digest of every array of a state, computed where the array lies and the same on every layout.

With u_i the bits of element i as an unsigned 32-bit word (two words where an element has 64 bits) and h an odd hash,
the digest is the sum over i of u_i h(i) modulo 2^32, i the element's global index. A sum does not depend on the order
in which devices add it up, so that neither the mesh nor the sharding changes it. One flipped bit k changes it by
2^k h(i), which no odd h(i) makes a multiple of 2^32: every single flip is found. Other damage goes unnoticed with
probability 2^-32 a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

WORD_BYTES = 4


def digests(arrays: Sequence[jax.Array]) -> tuple[list[int], list[bool]]:
    """Of every array its digest, and whether all of its elements are finite.

    The arrays of one device set are read by one program, which is compiled at the first call.
    """
    groups: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        groups.setdefault(frozenset(array.sharding.device_set), []).append(i)
    pending = {devices: _submitted([arrays[i] for i in which]) for devices, which in groups.items()}
    found: dict[int, tuple[int, bool]] = {}
    for devices, which in groups.items():
        sums, finite = (np.asarray(part) for part in pending[devices])
        found.update((i, (int(s), bool(f))) for i, s, f in zip(which, sums, finite, strict=True))
    return [found[i][0] for i in range(len(arrays))], [found[i][1] for i in range(len(arrays))]


def _submitted(arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Both vectors over arrays of one device set, whole on every device, on their way."""
    data = [_on_device(jax.random.key_data(a) if _is_key(a) else a) for a in arrays]
    sharding = data[0].sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return _program(sharding)(data)


def _on_device(array: jax.Array) -> jax.Array:
    """The array in its device's own memory: an offloaded optimizer's state lies in the host's."""
    kinds = {device.default_memory().kind for device in array.sharding.device_set}
    if array.sharding.memory_kind in (None, *kinds):
        return array
    return jax.device_put(array, array.sharding.with_memory_kind(kinds.pop()))


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


@lru_cache(maxsize=32)
def _program(sharding: Any) -> Any:
    return jax.jit(_both, out_shardings=(sharding, sharding))


def _both(arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return jnp.stack([_sum(a) for a in arrays]), jnp.stack([_finite(a) for a in arrays])


def _sum(array: jax.Array) -> jax.Array:
    """uint32[]: the digest of an array of any shape and dtype."""
    words = _words(array)
    index = _index(array.shape)
    terms = [word * _odd_hash(index * np.uint32(len(words)) + np.uint32(i)) for i, word in enumerate(words)]
    return sum((jnp.sum(t, dtype=jnp.uint32) for t in terms), jnp.uint32(0))


def _words(array: jax.Array) -> list[jax.Array]:
    """The bits of every element as one or more uint32 arrays of the array's own shape."""
    if jnp.iscomplexobj(array):
        return [*_words(array.real), *_words(array.imag)]
    if array.dtype == jnp.bool_:
        return [array.astype(jnp.uint32)]
    if array.dtype.itemsize > WORD_BYTES:
        parts = jax.lax.bitcast_convert_type(array, jnp.uint32)     # a last dim of words
        return [parts[..., i] for i in range(parts.shape[-1])]
    # ml_dtypes below a byte say an item size of 1: their bits are counted by finfo or iinfo
    bits = (jnp.finfo if jnp.issubdtype(array.dtype, jnp.floating) else jnp.iinfo)(array.dtype).bits
    return [jax.lax.bitcast_convert_type(array, f"uint{bits}").astype(jnp.uint32)]


def _index(shape: tuple[int, ...]) -> jax.Array:
    """uint32 of that shape: each element's index in row-major order, modulo 2^32."""
    index, stride = jnp.zeros(shape, jnp.uint32), 1
    for dim in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, dim) * np.uint32(stride % 2**32)
        stride *= shape[dim]
    return index


def _odd_hash(index: jax.Array) -> jax.Array:
    """An odd number that looks random: the 32-bit mixer `lowbias32` (C. Wellons, Hash Function Prospector, 2018)."""
    mixed = (index ^ (index >> 16)) * np.uint32(0x7FEB352D)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(0x846CA68B)
    return (mixed ^ (mixed >> 16)) | np.uint32(1)


def _finite(array: jax.Array) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.bool_(True)
    wide = array if array.dtype.itemsize > 1 else array.astype(jnp.float32)     # 8 bits and fewer
    return jnp.all(jnp.isfinite(wide))
