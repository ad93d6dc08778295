"""Why the best plan has the roles that it has: the best plan without each of them, and with each of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.plan.sharding import AXES
from jaxplan.search.rank import Ranking


@dataclass(frozen=True)
class Rival:
    """The best plan that differs from the best one in whether it has an axis.

    Attributes:
        axis: the axis; `without` says that the best plan has it and this one does not.
        candidate: this plan's row; None where no plan that fits is so.
        slower_s: its step time less the best plan's, by the best that is known of both.
        entry, entry_s: the entry of the estimated time ledger that grows most, and by how much.
    """

    axis: str
    without: bool
    candidate: int | None = None
    slower_s: float = 0.0
    entry: str = ""
    entry_s: float = 0.0


def rivals(ranking: Ranking, best: int, times_s: np.ndarray) -> tuple[Rival, ...]:
    """One rival for each axis that any candidate has.

    Args:
        times_s: the best known step time of every candidate.
    """
    order = ranking.order(times_s)
    found = []
    for axis in AXES:
        has = ranking.space.size_of(axis) > 1
        if has.any() and not has.all():
            rows = order[has[order] != has[best]]
            found.append(_rival(ranking, best, axis, bool(has[best]), rows, times_s))
    return tuple(found)


def _rival(
    ranking: Ranking, best: int, axis: str, without: bool, rows: np.ndarray, times_s: np.ndarray
) -> Rival:
    if not len(rows):
        return Rival(axis, without)
    mine, its = ranking.estimate(best), ranking.estimate(int(rows[0]))
    grown = {name: its.time_s.get(name, 0.0) - mine.time_s.get(name, 0.0) for name in {*its.time_s, *mine.time_s}}
    entry = max(grown, key=lambda name: grown[name])
    return Rival(axis, without, int(rows[0]), float(times_s[rows[0]] - times_s[best]), entry, grown[entry])
