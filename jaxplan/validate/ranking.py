"""Whether predictions put plans in the order that was published: pairs, Spearman, regret. Pure functions; no JAX here.

A ranking compares runs of one series, chip and workload by the device seconds that a token costs, which batch and
machine size leave comparable. A series of several workloads makes several rankings. Ties of our predictions count
against us: a tied pair is not in the right order, and of plans tied for the best the slowest is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.validate import varies as varies_file
from jaxplan.validate.row import Row

DIFFERENT = 0.05        # pairs that are closer than that are not judged: runs repeat to a few percent only
FEWEST_FOR_SPEARMAN = 3


@dataclass(frozen=True)
class Ranking:
    """The runs of one series, chip and workload.

    Attributes:
        varies_class: what the series varies (`varies.CLASSES`).
        runs: how many are compared.
        spread: the slowest over the fastest, less 1, as published.
        pairs: pairs whose published prices differ by more than 5%; `right` of them are predicted in that order.
        spearman: None with fewer than three runs, or where all were published alike.
        picked, best: the run that is predicted fastest, and the one that was.
        regret: the published price of `picked` over that of `best`, less 1.
    """

    series: str
    varies: str | None
    varies_class: str
    chip: str
    workload: str
    runs: int
    spread: float
    pairs: int
    right: int
    spearman: float | None
    picked: str
    best: str
    regret: float


@dataclass(frozen=True)
class RankingSummary:
    """All rankings of one class; None where there is nothing to judge.

    Attributes:
        right_share: of all pairs of all rankings.
        spearman_count: rankings of at least three runs.
    """

    varies_class: str
    rankings: int
    pairs: int
    right_share: float | None
    spearman_count: int
    mean_spearman: float | None
    mean_regret: float | None
    worst_regret: float | None


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, ties averaged: `[10, 30, 10]` -> `[1.5, 3, 1.5]`."""
    array = np.asarray(values, dtype=float)
    below = (array[None, :] < array[:, None]).sum(1)
    equal = (array[None, :] == array[:, None]).sum(1)
    return below + (equal + 1) / 2


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rho: the correlation of the ranks (Spearman 1904); None where x or y is constant."""
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return None if norm == 0 else float(np.clip((a @ b) / norm, -1.0, 1.0))


def rankings(
    rows: Iterable[Row], class_of: Callable[[str | None], str] = varies_file.class_of
) -> tuple[Ranking, ...]:
    """Every ranking of at least two runs that have a published and a predicted step time, by series."""
    alike: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.series and row.workload_key and row.error is not None and row.tokens_per_step is not None:
            alike.setdefault((row.series, row.chip, row.workload_key), []).append(row)
    return tuple(_ranking(alike[key], class_of) for key in sorted(alike) if len(alike[key]) > 1)


def _ranking(rows: list[Row], class_of: Callable[[str | None], str]) -> Ranking:
    first = rows[0]
    published = np.array([row.device_s_per_token(row.published_step_time_s) for row in rows], dtype=float)
    predicted = np.array([row.device_s_per_token(row.predicted_step_time_s) for row in rows], dtype=float)
    tied = np.flatnonzero(predicted == predicted.min())
    picked = int(tied[np.argmax(published[tied])])
    best = int(np.argmin(published))
    pairs, right = right_pairs(published, predicted)
    return Ranking(
        series=first.series or "",
        varies=first.varies,
        varies_class=class_of(first.varies),
        chip=first.chip,
        workload=first.workload_key or "",
        runs=len(rows),
        spread=float(published.max() / published.min() - 1),
        pairs=pairs,
        right=right,
        spearman=_rank_correlation(published, predicted),
        picked=rows[picked].id,
        best=rows[best].id,
        regret=float(published[picked] / published[best] - 1),
    )


def right_pairs(published: np.ndarray, predicted: np.ndarray) -> tuple[int, int]:
    """(pairs whose published values differ by more than 5% of the smaller, those predicted in the same order)."""
    slower, faster = published[:, None], published[None, :]
    judged = slower > (1 + DIFFERENT) * faster     # each pair once: the slower one first
    right = judged & (predicted[:, None] > predicted[None, :])
    return int(judged.sum()), int(right.sum())


def _rank_correlation(published: np.ndarray, predicted: np.ndarray) -> float | None:
    """Predictions that are all alike know nothing of the order: 0."""
    if len(published) < FEWEST_FOR_SPEARMAN or np.ptp(published) == 0:
        return None
    return spearman(published, predicted) or 0.0


def summaries(found: Sequence[Ranking]) -> tuple[RankingSummary, ...]:
    """One summary a class, series that vary the plan first."""
    present = {ranking.varies_class for ranking in found}
    names = [name for name in (*varies_file.CLASSES, varies_file.UNCLASSIFIED) if name in present]
    names += sorted(present - set(names))
    return tuple(summary(name, [r for r in found if r.varies_class == name]) for name in names)


def summary(name: str, found: Sequence[Ranking]) -> RankingSummary:
    """The rankings of one class together."""
    pairs = sum(ranking.pairs for ranking in found)
    rhos = [ranking.spearman for ranking in found if ranking.spearman is not None]
    regrets = [ranking.regret for ranking in found]
    return RankingSummary(
        varies_class=name,
        rankings=len(found),
        pairs=pairs,
        right_share=sum(ranking.right for ranking in found) / pairs if pairs else None,
        spearman_count=len(rhos),
        mean_spearman=float(np.mean(rhos)) if rhos else None,
        mean_regret=float(np.mean(regrets)) if regrets else None,
        worst_regret=max(regrets, default=None),
    )
