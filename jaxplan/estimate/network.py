"""The links of every set of mesh axes on every distinct mesh, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import JaxplanError
from jaxplan.estimate.terms import AXES
from jaxplan.machine.placement import Links, place
from jaxplan.machine.topology import Machine


@dataclass(frozen=True)
class ArrayLinks:
    """`machine.placement.Links` of many plans: the same fields, each an array with one entry a plan."""

    size: np.ndarray
    bytes_per_s: np.ndarray
    all_to_all_bytes_per_s: np.ndarray
    permute_bytes_per_s: np.ndarray
    latency_s: np.ndarray


_FIELDS = ("size", "bytes_per_s", "all_to_all_bytes_per_s", "permute_bytes_per_s", "latency_s")


class Network:
    """Placements of distinct meshes on one machine.

    `illegal` holds, by mesh row, why a mesh cannot be placed on the machine's physical axes.
    """

    def __init__(self, machine: Machine, meshes: Sequence[tuple[int, int, int]]) -> None:
        self.machine, self.meshes = machine, tuple(meshes)
        self.placements, self.illegal = [], {}
        for row, sizes in enumerate(self.meshes):
            try:
                self.placements.append(place(machine, dict(zip(AXES, sizes, strict=True))))
            except (JaxplanError, ValueError) as error:
                self.placements.append(None)
                self.illegal[row] = str(error)
        self._cache: dict[tuple[str, ...], np.ndarray] = {}

    def links(self, axes: tuple[str, ...], mesh: np.ndarray) -> ArrayLinks:
        """The links of a set of axes for each plan; `mesh` gives each plan's row."""
        if axes not in self._cache:
            self._cache[axes] = np.array([self._row(placement, axes) for placement in self.placements], dtype=float)
        return ArrayLinks(*self._cache[axes][mesh].T)

    @staticmethod
    def _row(placement, axes: tuple[str, ...]) -> list[float]:
        if placement is None:
            return [1.0, 1.0, 1.0, 1.0, 0.0]
        links: Links = placement.links(axes)
        return [float(getattr(links, field)) for field in _FIELDS]
