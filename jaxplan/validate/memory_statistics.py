"""How far predicted memory is off, and whether what ran fits and what did not run does not. No JAX here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.validate.row import Row

ALLOWED_MISS = 0.10     # of the capacity: a run that ran and is predicted to need more than that beyond it is a miss


@dataclass(frozen=True)
class MemoryStatistics:
    """Errors of predicted memory, of one kind of published figure or of `all` whose kind is stated."""

    memory_kind: str
    count: int
    mean_absolute_error: float | None
    mean_error: float | None
    worst_absolute_error: float | None


@dataclass(frozen=True)
class OutOfMemory:
    """Published outcomes against the predicted verdict.

    Attributes:
        oom_rows: rows whose source says that they went out of memory; `judged` of them have a verdict.
        refused: of those judged, predicted not to fit.
        called_fitting: the others of those judged, which are predicted to fit.
        ran: rows that ran and have a predicted memory and a known capacity.
        false_misses: of these, predicted to need more than 1.1 times the capacity.
        false_refusals: of these, predicted not to fit at all, by however little.
    """

    oom_rows: int
    judged: int
    refused: int
    called_fitting: tuple[str, ...]
    ran: int
    false_misses: tuple[str, ...]
    false_refusals: tuple[str, ...]

    @property
    def refused_share(self) -> float | None:
        """Of all rows that went out of memory: what has no verdict is not refused."""
        return self.refused / self.oom_rows if self.oom_rows else None


def memory_statistics(rows: Sequence[Row]) -> tuple[MemoryStatistics, ...]:
    """`all` first, then every kind that has rows."""
    kinds = sorted({row.memory_kind for row in rows if row.memory_error is not None})
    return tuple(
        _statistics(kind, [row for row in rows if kind in ("all", row.memory_kind)]) for kind in ["all", *kinds]
    )


def _statistics(kind: str, rows: Sequence[Row]) -> MemoryStatistics:
    errors = np.array([row.memory_error for row in rows if row.memory_error is not None], dtype=float)
    if not len(errors):
        return MemoryStatistics(kind, 0, None, None, None)
    size = np.abs(errors)
    return MemoryStatistics(kind, len(errors), float(size.mean()), float(errors.mean()), float(size.max()))


def out_of_memory(rows: Sequence[Row]) -> OutOfMemory:
    """The verdicts on runs that went out of memory and on runs that ran."""
    failed = [row for row in rows if row.oom]
    judged = [row for row in failed if row.fits is not None]
    ran = [row for row in rows if row.ran and row.predicted_memory_bytes is not None and row.capacity_bytes]
    return OutOfMemory(
        oom_rows=len(failed),
        judged=len(judged),
        refused=sum(row.fits is False for row in judged),
        called_fitting=tuple(row.id for row in judged if row.fits),
        ran=len(ran),
        false_misses=tuple(row.id for row in ran if _needs(row) > 1 + ALLOWED_MISS),
        false_refusals=tuple(row.id for row in ran if row.fits is False),
    )


def _needs(row: Row) -> float:
    """Predicted memory over capacity."""
    assert row.predicted_memory_bytes is not None and row.capacity_bytes
    return row.predicted_memory_bytes / row.capacity_bytes
