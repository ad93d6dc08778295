"""Other predictors' published errors, and our rows that stand beside them. No JAX here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pydantic

from jaxplan.machine import files
from jaxplan.validate.row import Row
from jaxplan.validate.statistics import StepStatistics, step_statistics


class Rival(files.Record):
    """One predictor's figures on one set of runs; `profiling/published/rivals.toml` explains the keys."""

    name: str
    source: str
    mean_absolute_error: float
    worst_absolute_error: float | None = None
    series: tuple[str, ...] = ()
    group: str | None = None
    chips: tuple[str, ...] = ()
    devices: tuple[int, int] | None = None
    same_runs: bool

    @pydantic.model_validator(mode="after")
    def _has_runs(self) -> Rival:
        if not self.series and not self.chips:
            raise ValueError("series or chips must say which runs")
        return self

    def covers(self, row: Row) -> bool:
        """Whether a row is one of those that this rival is compared on."""
        if self.series:
            return row.series in self.series
        low, high = self.devices or (1, row.devices)
        return self.group in (None, row.group) and row.chip in self.chips and low <= row.devices <= high


class RivalsFile(files.Record):
    """`profiling/published/rivals.toml`."""

    rival: tuple[Rival, ...]


@dataclass(frozen=True)
class Beside:
    """A rival's figures and ours on the rows that it covers."""

    rival: Rival
    ours: StepStatistics


@cache
def rivals() -> tuple[Rival, ...]:
    return files.read(files.folder("profiling/published") / "rivals.toml", RivalsFile).rival


def beside(rows: Sequence[Row], known: Sequence[Rival] | None = None) -> tuple[Beside, ...]:
    """Ours beside each rival that has rows here."""
    found = []
    for rival in rivals() if known is None else known:
        covered = [row for row in rows if rival.covers(row)]
        if covered:
            found.append(Beside(rival, step_statistics(covered)))
    return tuple(found)
