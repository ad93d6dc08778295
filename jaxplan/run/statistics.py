"""Step times as a distribution, and what a profiler adds to them. No JAX here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps, one after another."""

    all_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.all_s:
            raise ValueError("step times: expected at least one, got none")

    @property
    def median_s(self) -> float:
        return statistics.median(self.all_s)

    @property
    def worst_s(self) -> float:
        return max(self.all_s)

    def quantile_s(self, share: float) -> float:
        """The time within which that share of the steps ended: linear between ranks (Hyndman and Fan 1996, type 7)."""
        ordered = sorted(self.all_s)
        place = share * (len(ordered) - 1)
        low, high = math.floor(place), math.ceil(place)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    def to_json(self) -> dict[str, Any]:
        return {
            "median": self.median_s,
            "p10": self.quantile_s(0.1),
            "p90": self.quantile_s(0.9),
            "worst": self.worst_s,
            "all": list(self.all_s),
            "source": "measured",
        }


def overhead(plain_s: Sequence[float], profiled_s: Sequence[float]) -> float | None:
    """What the profiler adds to a step, as a share of it: the medians compared; None where one of them is missing."""
    if not plain_s or not profiled_s:
        return None
    return statistics.median(profiled_s) / statistics.median(plain_s) - 1
