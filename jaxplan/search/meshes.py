"""The mesh sizes that multiply up to a machine's devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxplan.plan.plan import ALWAYS, divisors
from jaxplan.plan.sharding import AXES
from jaxplan.workload.shape import Workload

Sizes = tuple[int, ...]     # one size an axis, in the order of `AXES`


def searched_axes(workload: Workload, limits: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that mean something to a workload.

    The reference decoder knows all of them; a user's program is laid out by its dims alone, which leaves those that are
    plain shardings.
    """
    if workload.model is None:
        return ALWAYS
    grouped = workload.model.heads > workload.model.kv_heads
    without = {"expert": workload.model.experts is None, "group": not grouped}
    return tuple(axis for axis in AXES if not without.get(axis, False))


def meshes(devices: int, axes: Sequence[str]) -> Iterator[Sizes]:
    """All sizes of `axes` whose product is `devices`; the other axes are 1."""
    places = [AXES.index(axis) for axis in axes]
    for found in _factorings(devices, len(axes)):
        sizes = [1] * len(AXES)
        for place, size in zip(places, found, strict=True):
            sizes[place] = size
        yield tuple(sizes)


def _factorings(n: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (n,)
        return
    for first in divisors(n):
        for rest in _factorings(n // first, count - 1):
            yield (first, *rest)
