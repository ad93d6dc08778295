"""Which physical links each mesh axis uses. No JAX here.

A machine is a stack of *levels*, innermost first: the devices of a chip, the torus axes x, y, z, and the slices where
there are several (TPU); the NVLink domain, then the network (GPU). Every level's length is a product of factors, each
given to one mesh axis; inside a level the chattiest mesh axis is innermost, so that it gets neighbours. Mesh axes whose
sizes cannot be made of the levels' factors have no placement.

The canonical index of a device counts the innermost level fastest: on TPU `core + cores (x + X (y + Y (z + Z slice)))`,
which are, in one slice, libtpu's device ids (checked for v4, v5e, v5p, v6e, tpu7x with jax 0.10.2), on GPU
`host x chips per host + chip`, which are the ids of the CUDA plugin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from jaxplan.machine import rates
from jaxplan.machine.assignment import Assigner, lengths
from jaxplan.machine.links import ALONE, Links
from jaxplan.machine.rates import Segment
from jaxplan.machine.topology import Machine

Part = Literal["whole", "slice", "network"]     # of a group: all of it, what is in one slice, what reaches over slices
CHATTIEST_FIRST = ("group", "tensor", "context", "expert", "fsdp", "data", "stage")


def coordinates(machine: Machine, index: int) -> tuple[int, ...]:
    """Position of a canonical device index in every level, innermost first: (core, x, y, z), with the slice where there
    are several, or (chip in domain, domain)."""
    out = []
    for length in lengths(machine):
        out.append(index % length)
        index //= length
    return tuple(out)


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

    @cached_property
    def _ranked(self) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
        """Mesh axes, the chattiest first, each with (factor, stride) at every level."""
        strides, found = [1] * len(lengths(self.machine)), []
        for axis in sorted(self.sizes, key=_rank(tuple(self.sizes))):
            found.append((axis, tuple(zip(self.factors[axis], strides, strict=True))))
            strides = [s * f for s, f in zip(strides, self.factors[axis], strict=True)]
        return tuple(found)

    def segments(self, axes: tuple[str, ...]) -> tuple[tuple[Segment, ...], ...]:
        """Per level, the stretches that a group over these mesh axes covers; neighbouring factors are one
        stretch."""
        out: list[list[Segment]] = [[] for _ in lengths(self.machine)]
        for axis, levels in self._ranked:
            if axis not in axes:
                continue
            for found, (factor, stride), length in zip(out, levels, lengths(self.machine), strict=True):
                if factor == 1:
                    continue
                if found and found[-1].stride * found[-1].size == stride:
                    found[-1] = Segment(found[-1].size * factor, found[-1].stride, length)
                else:
                    found.append(Segment(factor, stride, length))
        return tuple(map(tuple, out))

    def links(self, axes: tuple[str, ...] | str, part: Part = "whole") -> Links:
        """The links of a group over these mesh axes (axes of size 1 do not count).

        Args:
            part: on a machine of several slices, of the whole group, of its members in one slice, or of one member in
                each slice: collectives over slices are compiled to one for each part.

        Raises:
            ValueError: an axis that the mesh does not have.
        """
        wanted = (axes,) if isinstance(axes, str) else tuple(axes)
        unknown = [axis for axis in wanted if axis not in self.sizes]
        if unknown:
            raise ValueError(f"the mesh has axes {', '.join(self.sizes)}, not {', '.join(unknown)}")
        segments = self.segments(wanted)
        if part != "whole" and self.machine.slices > 1:
            kept = range(len(segments) - 1) if part == "slice" else range(len(segments) - 1, len(segments))
            segments = tuple(found if level in kept else () for level, found in enumerate(segments))
        return _links(self.machine, segments) if any(segments) else ALONE

    def describe(self, axis: str) -> str:
        """Where one mesh axis lies, in words."""
        return self.links((axis,)).medium


def _rank(axes: tuple[str, ...]):
    """Sort key of mesh axes, the chattiest first; names that are no role follow mesh order from its inner
    end."""
    known = {name: i for i, name in enumerate(CHATTIEST_FIRST)}
    return lambda axis: (known.get(axis, len(known)), -axes.index(axis))


def place(machine: Machine, sizes: Mapping[str, int]) -> Placement:
    """The placement that gives the chattiest mesh axes the best links (`machine.assignment` has the order).

    Axes are chatty in the order of `CHATTIEST_FIRST`: what crosses slices is `stage` or `data`, and `tensor` only where
    nothing else is left.

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
    live = [axis for axis in sorted(sizes, key=_rank(tuple(sizes))) if sizes[axis] > 1]
    chosen = _assigner(machine).best(tuple(sizes[axis] for axis in live))
    if chosen is None:
        shape = "x".join(map(str, lengths(machine)))
        raise ValueError(f"mesh {sizes} cannot be made of the factors of {machine.name} (levels {shape})")
    ones = (1,) * len(lengths(machine))
    return Placement(machine, sizes, dict.fromkeys(sizes, ones) | dict(zip(live, chosen, strict=True)))


@lru_cache(maxsize=16)
def _assigner(machine: Machine) -> Assigner:
    return Assigner(machine)


@lru_cache(maxsize=2**16)
def _links(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> Links:
    return rates.links(machine, segments)
