"""What one group of devices can move, and how fast: the answer that a placement gives. No JAX here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Links:
    """The links under one group of devices (all groups of the mesh axes at work at once).

    Attributes:
        size: devices of one group.
        bytes_per_s: per device, when all its links are used (all-reduce): S bytes all-gathered would take
            (size - 1) / size S / rate.
        all_to_all_bytes_per_s: per device: each sends (size - 1) / size of its bytes at this rate.
        permute_bytes_per_s: per device, each to its next neighbour.
        latency_s: of one pass over the group (an all-gather; an all-reduce is two passes).
        all_gather_bytes_per_s: `bytes_per_s` of all-gathers: less where the compiler leaves links idle
            (0: the same).
        reduce_scatter_bytes_per_s: the same of reduce-scatters.
        fraction: the part of the rates that large collectives reached when measured on such links.
        crosses_network: whether the group leaves its slice or NVLink domain.
        medium: the links in words.
    """

    size: int
    bytes_per_s: float
    all_to_all_bytes_per_s: float
    permute_bytes_per_s: float
    latency_s: float
    all_gather_bytes_per_s: float = 0.0
    reduce_scatter_bytes_per_s: float = 0.0
    fraction: float = 1.0
    crosses_network: bool = False
    medium: str = ""

    def __post_init__(self) -> None:
        for name in ("all_gather_bytes_per_s", "reduce_scatter_bytes_per_s"):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, self.bytes_per_s)
        if self.size < 1 or self.latency_s < 0 or not 0 < self.fraction <= 1:
            raise ValueError(f"links need a size, a latency and a fraction in (0, 1], got {self}")
        if min(getattr(self, name) for name in RATES) <= 0:
            raise ValueError(f"rates of links must be positive, got {self}")

    def achieved(self) -> Links:
        """The same links at the rates that measurements reached, instead of the data sheet's."""
        slower = {name: getattr(self, name) * self.fraction for name in RATES}
        return replace(self, **slower, fraction=1.0)


RATES = (
    "bytes_per_s",
    "all_gather_bytes_per_s",
    "reduce_scatter_bytes_per_s",
    "all_to_all_bytes_per_s",
    "permute_bytes_per_s",
)

ALONE = Links(1, math.inf, math.inf, math.inf, 0.0, medium="one device")
