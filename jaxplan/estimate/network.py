"""What a byte and a start cost on every set of mesh axes of every distinct mesh, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import JaxplanError
from jaxplan.estimate.exchange import HOST_COPY
from jaxplan.machine.collectives import moved, rate, start
from jaxplan.machine.placement import Placement, place
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import mesh_axes
from jaxplan.plan.sharding import AXES


@dataclass(frozen=True)
class Prices:
    """Of several kinds of collectives over sets of axes, float [meshes, collectives].

    Attributes:
        start_s: fixed seconds of one execution.
        again_s: what an execution waits more, at most; less where its bytes take less (`machine.collectives`).
        byte_s: seconds per byte at the rates that measurements reached; `ideal_byte_s` at the data sheet's.
        moves: 1 where the axes hold more than one device, else 0.
    """

    start_s: np.ndarray
    again_s: np.ndarray
    byte_s: np.ndarray
    ideal_byte_s: np.ndarray
    moves: np.ndarray


class Network:
    """Placements of distinct meshes on one machine.

    `illegal` holds, by mesh row, why a mesh cannot be placed on the machine's physical axes.
    """

    def __init__(self, machine: Machine, meshes: Sequence[tuple[int, ...]]) -> None:
        self.machine, self.meshes = machine, tuple(meshes)
        self.placements: list[Placement | None] = []
        self.illegal: dict[int, str] = {}
        for row, sizes in enumerate(self.meshes):
            try:
                axes = mesh_axes(dict(zip(AXES, sizes, strict=True)))
                self.placements.append(place(machine, {axis.name: axis.size for axis in axes}))
            except (JaxplanError, ValueError) as error:
                self.placements.append(None)
                self.illegal[row] = str(error)
        self._lines: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def prices(self, collectives: Sequence[tuple[str, tuple[str, ...]]]) -> Prices:
        """The prices of collectives, given as (kind, axes), on every mesh."""
        for kind, axes in collectives:
            if (kind, axes) not in self._lines:
                lines = [self._line(kind, axes, placement) for placement in self.placements]
                self._lines[kind, axes] = np.array(lines)
        columns = np.array([self._lines[key] for key in collectives]).reshape(-1, len(self.placements), 5)
        return Prices(*columns.transpose(2, 1, 0))

    def _line(
        self, kind: str, axes: tuple[str, ...], placement: Placement | None
    ) -> tuple[float, float, float, float, float]:
        """Start, start again, seconds a byte, the same at the data sheet's rates, and whether anything moves."""
        if kind != HOST_COPY:
            return _line(kind, axes, placement)
        each = self.machine.device_host_bytes_per_s
        return (0.0, 0.0, 1 / each, 1 / each, 1.0) if each else NOTHING


NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0)


def _line(kind: str, axes: tuple[str, ...], placement: Placement | None) -> tuple[float, float, float, float, float]:
    """As `Network._line`, of what devices send to each other."""
    links = placement.links(tuple(a for a in axes if a in placement.sizes)) if placement is not None else None
    if links is None or links.size == 1:
        return NOTHING
    once, each = start(kind, links), float(moved(kind, 1.0, links.size))
    return once, once * links.two_protocols, each / rate(kind, links.achieved()), each / rate(kind, links), 1.0
