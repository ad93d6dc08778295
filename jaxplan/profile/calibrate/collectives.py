"""Every collective as a program: kinds, group sizes, sizes of data. Imports JAX when called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = Any
HOST_ELEMENTS = (256, 4 * 1024, 64 * 1024, 1024 * 1024)        # of the array that a device holds, in float32
LARGE_ELEMENTS = (1024, 64 * 1024, 1024**2, 16 * 1024**2, 256 * 1024**2)
GROUP, OTHER = "group", "other"


def programs(
    groups: Sequence[int], large: bool, quick: bool
) -> Iterator[tuple[str, Callable[..., Any], tuple, dict[str, int], dict[str, Any]]]:
    """(name, function, arguments, mesh axes, facts) of every collective.

    `bytes` among the facts is counted as `machine.collectives` does: the gathered result, the scattered or reduced
    input, what one device holds of an all-to-all, the message of a permute.

    Args:
        groups: how many devices a group has, each at least 2; neighbours in JAX's order are one group.
        large: data up to 1 GiB, for machines with links of their own.
        quick: every other size.
    """
    import jax

    count = jax.device_count()
    for size in groups:
        for elements in (LARGE_ELEMENTS if large else HOST_ELEMENTS)[:: 3 if quick else 1]:
            for kind, function, held, nbytes in _kinds(size, elements):
                name = f"{kind} of {size}, {nbytes} bytes"
                about = {"kind": kind, "group": size, "bytes": nbytes}
                yield name, function, (((held,), "float32"),), {OTHER: count // size, GROUP: size}, about


def _kinds(size: int, elements: int) -> Iterator[tuple[str, Callable[..., Any], int, int]]:
    """(kind, function, elements that a device gives, bytes) of one size of data."""
    from jax import lax

    whole = elements // size * size
    ring = [(i, (i + 1) % size) for i in range(size)]
    yield "all-gather", lambda x: lax.all_gather(x, GROUP, tiled=True), whole // size, 4 * whole
    yield "reduce-scatter", lambda x: lax.psum_scatter(x, GROUP, tiled=True), whole, 4 * whole
    yield "all-reduce", lambda x: lax.psum(x, GROUP), whole, 4 * whole
    yield "all-to-all", lambda x: lax.all_to_all(x, GROUP, 0, 0, tiled=True), whole, 4 * whole
    yield "collective-permute", lambda x: lax.ppermute(x, GROUP, ring), whole, 4 * whole


def group_sizes(devices: int, per_process: int) -> tuple[int, ...]:
    """Group sizes worth timing: powers of two, what one host holds, and all devices."""
    powers = [2**k for k in range(1, int(np.log2(max(devices, 1))) + 1)]
    wanted = {*powers, per_process, devices}
    return tuple(sorted(n for n in wanted if n >= 2 and devices % n == 0))
