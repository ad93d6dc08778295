"""What the predictions must reach on grade A runs that nothing was fitted to, beside what they do. No JAX here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxplan.validate import varies as varies_file
from jaxplan.validate.memory_statistics import memory_statistics, out_of_memory
from jaxplan.validate.ranking import rankings, summary
from jaxplan.validate.row import GROUPS, Row
from jaxplan.validate.statistics import step_statistics

GRADE = "A"


@dataclass(frozen=True)
class Bar:
    """One requirement.

    Attributes:
        what: what is judged.
        sign: how `ours` must compare with `limit`: `<`, `<=` or `>=`.
        unit: `%` for a share (0.1 is 10%), `runs` for a number of runs, else empty.
        ours: None where no run can tell.
        count: runs, pairs or series that it rests on.
        signed: `ours` has a sign; its size is judged.
    """

    what: str
    sign: str
    limit: float
    unit: str
    ours: float | None
    count: int
    signed: bool = False

    @property
    def passed(self) -> bool | None:
        if self.ours is None:
            return None
        ours = abs(self.ours) if self.signed else self.ours
        return {"<": ours < self.limit, "<=": ours <= self.limit, ">=": ours >= self.limit}[self.sign]


def judged_rows(rows: Sequence[Row], part: str = "check") -> tuple[Row, ...]:
    """The rows that the bars are about: grade A of one part."""
    return tuple(row for row in rows if row.grade == GRADE and row.part == part)


def bars(rows: Sequence[Row], class_of: Callable[[str | None], str] = varies_file.class_of) -> tuple[Bar, ...]:
    """Every bar on these rows, in the order of the requirements."""
    return (*_step_bars(rows), *_ranking_bars(rows, class_of), *_memory_bars(rows))


def _step_bars(rows: Sequence[Row]) -> list[Bar]:
    overall = step_statistics(rows)
    by_group = {name: step_statistics([row for row in rows if row.group == name]) for name in GROUPS}
    found = [Bar("step time, mean absolute error, all", "<", 0.10, "%", overall.mean_absolute_error, overall.count)]
    for name, one in by_group.items():
        found.append(Bar(f"step time, mean absolute error, {name}", "<", 0.12, "%", one.mean_absolute_error, one.count))
    for name, one in by_group.items():
        found.append(Bar(f"signed bias, {name}", "<=", 0.05, "%", one.mean_error, one.count, signed=True))
    return [
        *found,
        Bar("95th percentile of the error", "<", 0.25, "%", overall.p95_absolute_error, overall.count),
        Bar("published value inside [low, high]", ">=", 0.95, "%", overall.coverage, overall.count),
        Bar("high/low, median", "<=", 2.0, "", overall.median_high_over_low, overall.count),
    ]


def _ranking_bars(rows: Sequence[Row], class_of: Callable[[str | None], str]) -> list[Bar]:
    plans = [ranking for ranking in rankings(rows, class_of) if ranking.varies_class == varies_file.PLAN]
    one = summary(varies_file.PLAN, plans)
    return [
        Bar("pairs of plans in the right order", ">=", 0.92, "%", one.right_share, one.pairs),
        Bar("Spearman within a series, mean", ">=", 0.85, "", one.mean_spearman, one.spearman_count),
        Bar("top-1 regret, mean", "<", 0.03, "%", one.mean_regret, one.rankings),
        Bar("top-1 regret, worst", "<", 0.10, "%", one.worst_regret, one.rankings),
    ]


def _memory_bars(rows: Sequence[Row]) -> list[Bar]:
    memory, verdicts = memory_statistics(rows)[0], out_of_memory(rows)
    misses = float(len(verdicts.false_misses)) if verdicts.ran else None
    return [
        Bar("memory, mean absolute error", "<", 0.08, "%", memory.mean_absolute_error, memory.count),
        Bar("runs out of memory, predicted not to fit", ">=", 0.90, "%", verdicts.refused_share, verdicts.oom_rows),
        Bar("runs that ran, predicted to miss by over 10%", "<=", 0.0, "runs", misses, verdicts.ran),
    ]
