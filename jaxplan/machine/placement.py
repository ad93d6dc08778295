"""Which physical links each mesh axis uses. No JAX here.

A machine is a stack of *levels*, innermost first: the devices of a chip, then the torus axes x, y, z (TPU);
the NVLink domain, then the network (GPU). Every level's length is a product of factors, each given to one
mesh axis; inside a level the chattiest mesh axis is innermost, so that it gets neighbours. Mesh axes whose
sizes cannot be made of the levels' factors have no placement.

The canonical index of a device counts the innermost level fastest: on TPU `core + cores (x + X (y + Y z))`,
which are libtpu's device ids (checked for v4, v5e, v5p, v6e, tpu7x with jax 0.10.2), on GPU `host x chips per
host + chip`, which are the ids of the CUDA plugin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from jaxplan.machine import rates
from jaxplan.machine.links import ALONE, Links
from jaxplan.machine.rates import Segment
from jaxplan.machine.topology import Machine

CHATTIEST_FIRST = ("tensor", "context", "expert", "fsdp", "data", "stage")


def coordinates(machine: Machine, index: int) -> tuple[int, ...]:
    """Position of a canonical device index in every level, innermost first: (core, x, y, z) or (chip in
    domain, domain)."""
    out = []
    for length in lengths(machine):
        out.append(index % length)
        index //= length
    return tuple(out)


def lengths(machine: Machine) -> tuple[int, ...]:
    """The lengths of the levels, innermost first."""
    if machine.kind == "tpu":
        return (machine.chip.devices_per_chip, *machine.shape)
    return (machine.domain_chips, machine.chips // machine.domain_chips)


@dataclass(frozen=True)
class Placement:
    """Mesh axes laid over the levels of a machine.

    Attributes:
        sizes: mesh axis to size, in mesh order.
        factors: mesh axis to its factor at every level, innermost level first.
    """

    machine: Machine
    sizes: Mapping[str, int]
    factors: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        for axis, size in self.sizes.items():
            if math.prod(self.factors[axis]) != size:
                raise ValueError(f"axis {axis}: factors {self.factors[axis]} do not multiply up to {size}")
        for level, length in enumerate(lengths(self.machine)):
            have = math.prod(f[level] for f in self.factors.values())
            if have != length:
                raise ValueError(f"level {level}: factors multiply up to {have}, its length is {length}")

    @cached_property
    def order(self) -> np.ndarray:
        """Canonical device indices, an int array shaped like the mesh."""
        grid = np.zeros(tuple(self.sizes.values()), dtype=np.int64)
        strides = dict.fromkeys(range(len(lengths(self.machine))), 1)
        unit = np.cumprod((1, *lengths(self.machine)))
        where = {axis: i for i, axis in enumerate(self.sizes)}
        for axis in sorted(self.sizes, key=_rank(tuple(self.sizes))):
            position, part = np.arange(self.sizes[axis]), np.zeros(self.sizes[axis], dtype=np.int64)
            for level, factor in enumerate(self.factors[axis]):
                part += (position % factor) * strides[level] * unit[level]
                position = position // factor
                strides[level] *= factor
            grid += part.reshape([-1 if i == where[axis] else 1 for i in range(len(self.sizes))])
        return grid

    def segments(self, axes: tuple[str, ...]) -> tuple[tuple[Segment, ...], ...]:
        """Per level, the stretches that a group over these mesh axes covers; neighbouring factors are one
        stretch."""
        out = []
        for level, length in enumerate(lengths(self.machine)):
            stride, found = 1, []
            for axis in sorted(self.sizes, key=_rank(tuple(self.sizes))):
                factor = self.factors[axis][level]
                if axis in axes and factor > 1:
                    if found and found[-1].stride * found[-1].size == stride:
                        found[-1] = Segment(found[-1].size * factor, found[-1].stride, length)
                    else:
                        found.append(Segment(factor, stride, length))
                stride *= factor
            out.append(tuple(found))
        return tuple(out)

    def links(self, axes: tuple[str, ...] | str) -> Links:
        """The links of a group over these mesh axes (axes of size 1 do not count).

        Raises:
            ValueError: an axis that the mesh does not have.
        """
        wanted = (axes,) if isinstance(axes, str) else tuple(axes)
        unknown = [axis for axis in wanted if axis not in self.sizes]
        if unknown:
            raise ValueError(f"the mesh has axes {', '.join(self.sizes)}, not {', '.join(unknown)}")
        if math.prod(self.sizes[axis] for axis in wanted) == 1:
            return ALONE
        return rates.links(self.machine, self.segments(wanted))

    def describe(self, axis: str) -> str:
        """Where one mesh axis lies, in words."""
        return self.links((axis,)).medium


def _rank(axes: tuple[str, ...]):
    """Sort key of mesh axes, the chattiest first; names that are no role follow mesh order from its inner
    end."""
    known = {name: i for i, name in enumerate(CHATTIEST_FIRST)}
    return lambda axis: (known.get(axis, len(known)), -axes.index(axis))


def place(machine: Machine, sizes: Mapping[str, int]) -> Placement:
    """The placement that gives the chattiest mesh axes the best links.

    Among all ways to factor the mesh axes over the levels, first those that split the fewest torus axes
    between mesh axes (whole rings first), then by the rates of the mesh axes in the order tensor, ..., fsdp,
    data.

    Args:
        machine: where to.
        sizes: mesh axis to size, outermost first; their product is the number of devices.

    Raises:
        ValueError: the product is wrong, or the sizes cannot be made of the levels' factors.
    """
    return _place(machine, tuple(sizes.items()))


@lru_cache(maxsize=4096)
def _place(machine: Machine, items: tuple[tuple[str, int], ...]) -> Placement:
    sizes = dict(items)
    if math.prod(sizes.values()) != machine.devices:
        raise ValueError(
            f"mesh {sizes} has {math.prod(sizes.values())} devices, {machine.name} has {machine.devices}"
        )
    ranked = sorted(sizes, key=_rank(tuple(sizes)))
    live = [axis for axis in ranked if sizes[axis] > 1]
    ones = (1,) * len(lengths(machine))
    fewest, kept = math.inf, []
    for chosen in _assignments(tuple(sizes[axis] for axis in live), lengths(machine)):
        splits = _splits(machine, chosen)
        if splits < fewest:
            fewest, kept = splits, []
        if splits == fewest:
            kept.append(dict.fromkeys(sizes, ones) | dict(zip(live, chosen, strict=True)))
    if not kept:
        shape = "x".join(map(str, lengths(machine)))
        raise ValueError(f"mesh {sizes} cannot be made of the factors of {machine.name} (levels {shape})")
    candidates = [Placement(machine, sizes, factors) for factors in kept]
    return max(candidates, key=lambda placed: _score(placed, live)) if len(candidates) > 1 else candidates[0]


def _splits(machine: Machine, chosen: tuple[tuple[int, ...], ...]) -> int:
    """How often a torus axis is cut between mesh axes."""
    torus = range(1, 1 + len(machine.shape)) if machine.kind == "tpu" else ()
    shared = (sum(factors[level] > 1 for factors in chosen) for level in torus)
    return sum(n - 1 for n in shared if n > 1)


def _score(candidate: Placement, live: list[str]) -> tuple:
    found = [candidate.links((axis,)) for axis in live]
    return (
        tuple((links.bytes_per_s, not links.crosses_network) for links in found),
        tuple(-links.latency_s for links in found),
    )


def _assignments(sizes: tuple[int, ...], free: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to write each size as a product of one factor a level, so that all levels are used up."""
    if not sizes:
        if all(n == 1 for n in free):
            yield ()
        return
    for chosen in _factorings(sizes[0], free):
        rest = tuple(n // f for n, f in zip(free, chosen, strict=True))
        for others in _assignments(sizes[1:], rest):
            yield (chosen, *others)


def _factorings(size: int, free: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not free:
        if size == 1:
            yield ()
        return
    for factor in range(1, math.gcd(size, free[0]) + 1):
        if size % factor == 0 and free[0] % factor == 0:
            for others in _factorings(size // factor, free[1:]):
                yield (factor, *others)
