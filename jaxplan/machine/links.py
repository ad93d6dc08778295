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
        latency_s: of one pass over the group (an all-gather).
        all_reduce_latency_s: of an all-reduce (0: two passes).
        hop_latency_s: of a message to the next neighbour (0: as of a pass).
        exchange_latency_s: of an all-to-all (0: as of a pass).
        two_protocols: whether small messages go by a protocol of half the rate, and large ones pay the start twice
            (NCCL, RCCL; see `machine.collectives`).
        all_reduce_bytes_per_s: `bytes_per_s` of all-reduces: more where the switch adds (0: the same).
        all_gather_bytes_per_s: `bytes_per_s` of all-gathers: less where the compiler leaves links idle
            (0: the same).
        reduce_scatter_bytes_per_s: the same of reduce-scatters.
        fraction: the part of the rates that large collectives reached when measured on such links.
        all_reduce_fraction: the same of all-reduces (0: the same).
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
    all_reduce_bytes_per_s: float = 0.0
    all_reduce_latency_s: float = 0.0
    hop_latency_s: float = 0.0
    exchange_latency_s: float = 0.0
    two_protocols: bool = False
    fraction: float = 1.0
    all_reduce_fraction: float = 0.0
    crosses_network: bool = False
    medium: str = ""

    def __post_init__(self) -> None:
        usual = dict.fromkeys(("all_gather_bytes_per_s", "reduce_scatter_bytes_per_s"), self.bytes_per_s)
        usual |= {"all_reduce_bytes_per_s": self.bytes_per_s, "all_reduce_fraction": self.fraction}
        usual |= {"all_reduce_latency_s": 2 * self.latency_s}
        usual |= dict.fromkeys(("hop_latency_s", "exchange_latency_s"), self.latency_s)
        for name, value in usual.items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)
        if self.size < 1 or self.latency_s < 0 or not (0 < self.fraction <= 1 and 0 < self.all_reduce_fraction <= 1):
            raise ValueError(f"links need a size, a latency and fractions in (0, 1], got {self}")
        if min(getattr(self, name) for name in RATES) <= 0:
            raise ValueError(f"rates of links must be positive, got {self}")

    def achieved(self) -> Links:
        """The same links at the rates that measurements reached, instead of the data sheet's."""
        slower = {name: getattr(self, name) * self.fraction for name in RATES}
        slower["all_reduce_bytes_per_s"] = self.all_reduce_bytes_per_s * self.all_reduce_fraction
        return replace(self, **slower, fraction=1.0, all_reduce_fraction=1.0)


RATES = (
    "bytes_per_s",
    "all_reduce_bytes_per_s",
    "all_gather_bytes_per_s",
    "reduce_scatter_bytes_per_s",
    "all_to_all_bytes_per_s",
    "permute_bytes_per_s",
)

ALONE = Links(1, math.inf, math.inf, math.inf, 0.0, medium="one device")
