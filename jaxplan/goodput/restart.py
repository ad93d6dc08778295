"""From a failure to training again: phases under the standard names of badput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.goodput.checks import not_negative

OTHER, RESTORE = "other", "checkpoint restore"
DETECTION = "detection"             # what users call it; it has no standard name of its own
PHASES: tuple[str, ...] = (OTHER, "initialization", "training preparation", "program startup", "data loading", RESTORE)


@dataclass(frozen=True)
class Phase:
    """One phase of a restart."""

    name: str
    seconds: float

    def __post_init__(self) -> None:
        if self.name not in PHASES:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {self.name!r}")
        not_negative(**{self.name: self.seconds})


def in_order(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Those that take time, in the order in which they happen; detection, under `other`, is the first."""
    return tuple(sorted((p for p in phases if p.seconds > 0), key=lambda phase: PHASES.index(phase.name)))


def total_s(phases: Sequence[Phase]) -> float:
    return math.fsum(phase.seconds for phase in phases)


def first_start_s(phases: Sequence[Phase]) -> float:
    """A run's first start: nothing to detect, nothing to restore."""
    return math.fsum(phase.seconds for phase in phases if phase.name not in (OTHER, RESTORE))
