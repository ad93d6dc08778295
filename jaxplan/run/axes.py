"""A mesh for fewer devices that does the same things: sizes of a plan's axes on what is attached. No JAX here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from jaxplan.plan.plan import divisors

#: Which axes stay larger than 1 where there are too few devices for all, the first first: those whose step is another
#: program (a pipeline, a ring, an exchange of tokens) before those that only move arrays, and `data`, which adds one
#: all-reduce a step, late; `group` needs a whole `tensor` axis.
KEPT_FIRST = ("stage", "context", "expert", "tensor", "fsdp", "data", "group")


def axis_sizes(asked: Mapping[str, int], devices: int) -> dict[str, int]:
    """The sizes that a mesh's axes get on so many devices.

    Every size divides the asked one, so that whatever the asked mesh divided is divided. Of all such meshes the one
    that keeps most axes larger than 1, in the order of `KEPT_FIRST`; then the one with most devices; then the one whose
    axes are cut most evenly.

    Args:
        asked: axis name to size, in mesh order.

    Raises:
        ValueError: no devices.
    """
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    names = tuple(asked)
    best = max(_meshes(tuple(asked.values()), devices), key=lambda sizes: _worth(names, tuple(asked.values()), sizes))
    return dict(zip(names, best, strict=True))


def _worth(names: tuple[str, ...], asked: tuple[int, ...], sizes: tuple[int, ...]) -> tuple:
    of, were = dict(zip(names, sizes, strict=True)), dict(zip(names, asked, strict=True))
    kept = tuple(of.get(axis, 1) > 1 for axis in KEPT_FIRST)
    cuts = [math.log(were[axis] / of[axis]) for axis in names if were[axis] > 1]
    evenness = -sum(cut * cut for cut in cuts)
    # ties are broken by the order of KEPT_FIRST, so that the answer does not hang on how meshes are listed
    return kept, math.prod(sizes), round(evenness, 9), tuple(of.get(axis, 1) for axis in KEPT_FIRST)


@lru_cache
def _meshes(asked: tuple[int, ...], devices: int) -> tuple[tuple[int, ...], ...]:
    """Every mesh of divisors that is no larger than the devices."""
    return tuple(_products(asked, devices))


def _products(asked: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    if not asked:
        yield ()
        return
    for size in itertools.takewhile(lambda d: d <= most, divisors(asked[0])):
        yield from ((size, *rest) for rest in _products(asked[1:], most // size))
