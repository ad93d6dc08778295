"""One finding, and what a rule may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxplan.profile.figures import Measured

WORTH = 0.03        # chosen: of the step; what takes less is not worth a sentence


@dataclass(frozen=True)
class Finding:
    """What explains a part of a step.

    Attributes:
        detail: what was seen. suggestion: what to change, in the plan, the program or the calibration.
        seconds: of the step that it explains.
    """

    title: str
    detail: str
    suggestion: str
    seconds: float


class Compared(Protocol):
    """What `profile.compare.Comparison` shows to rules."""

    @property
    def measured(self) -> Measured: ...
    @property
    def record(self) -> Any: ...
    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def collectives(self) -> Sequence[Any]: ...
    @property
    def tier(self) -> str: ...
    @property
    def elsewhere(self) -> str: ...


def worth(seconds: float, compared: Compared) -> bool:
    """Whether so many seconds of a step are worth a sentence."""
    return seconds >= WORTH * compared.measured.step_s


def share(seconds: float, compared: Compared) -> str:
    """`12% of the step`."""
    return f"{seconds / compared.measured.step_s:.0%} of the step"


def spent(compared: Compared, name: str) -> float:
    """Measured seconds of a line of the ledger."""
    return sum(entry.seconds for entry in compared.measured.ledger if entry.name == name)
