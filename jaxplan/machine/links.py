"""What one group of devices can move, and how fast: the answer that a placement gives. No JAX here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Links:
    """The links under one group of devices (all groups of the mesh axes at work at once).

    Attributes:
        size: devices of one group.
        bytes_per_s: per device, of ring-like collectives: an all-gather of S bytes takes (size - 1) / size S
            / rate.
        all_to_all_bytes_per_s: per device: each sends (size - 1) / size of its bytes at this rate.
        permute_bytes_per_s: per device, each to its next neighbour.
        latency_s: of one pass over the group (an all-gather; an all-reduce is two passes).
        fraction: the part of the rates that large collectives reached when measured on such links.
        crosses_network: whether the group leaves its slice or NVLink domain.
        medium: the links in words.
    """

    size: int
    bytes_per_s: float
    all_to_all_bytes_per_s: float
    permute_bytes_per_s: float
    latency_s: float
    fraction: float = 1.0
    crosses_network: bool = False
    medium: str = ""

    def __post_init__(self) -> None:
        rates = (self.bytes_per_s, self.all_to_all_bytes_per_s, self.permute_bytes_per_s)
        if self.size < 1 or min(rates) <= 0 or self.latency_s < 0 or not 0 < self.fraction <= 1:
            raise ValueError(
                f"links need a size, positive rates, a latency and a fraction in (0, 1], got {self}"
            )

    def achieved(self) -> Links:
        """The same links at the rates that measurements reached, instead of the data sheet's."""
        return replace(
            self,
            bytes_per_s=self.bytes_per_s * self.fraction,
            all_to_all_bytes_per_s=self.all_to_all_bytes_per_s * self.fraction,
            permute_bytes_per_s=self.permute_bytes_per_s * self.fraction,
            fraction=1.0,
        )


ALONE = Links(1, math.inf, math.inf, math.inf, 0.0, medium="one device")
