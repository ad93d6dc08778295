"""The tables of `validate` over many runs, which the terminal and the page share. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxplan.report.grid import Grid
from jaxplan.report.validate import ValidateReport
from jaxplan.report.words import count_words
from jaxplan.units import significant
from jaxplan.validate.bars import Bar
from jaxplan.validate.memory_statistics import OutOfMemory, memory_statistics
from jaxplan.validate.ranking import Ranking, rankings, summary
from jaxplan.validate.statistics import Group, StepStatistics, groups, step_statistics
from jaxplan.validate.varies import PLAN

NOTHING = "-"
OURS = "jaxplan"
SHOWN_IDS = 3
VERDICTS = {True: "pass", False: "MISS", None: "no runs"}
STEP_HEAD = ("runs", "compared", "error", "bias", "median bias", "95th pct", "inside", "high/low")

STEP_FIGURES = tuple(range(2, 2 + len(STEP_HEAD)))
NEEDED_LEAST = tuple(2 + STEP_HEAD.index(name) for name in ("median bias", "runs", "high/low", "95th pct"))


def share(value: float | None, signed: bool = False) -> str:
    """A fraction as percent, three significant digits at most one behind the point (`8.7%`, `-3.2%`)."""
    if value is None:
        return NOTHING
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def figure(value: float | None) -> str:
    return NOTHING if value is None else significant(value)


def bars_grid(report: ValidateReport) -> Grid:
    """Requirements beside what is reached, with the verdict in words."""
    body = tuple((bar.what, _limit(bar), _ours(bar), f"{bar.count:,}", VERDICTS[bar.passed]) for bar in report.bars)
    title = f"Requirements, on grade A runs of the {'fitting' if report.judged_part == 'fit' else 'checking'} set"
    note = "Runs: runs, pairs of plans or rankings that a figure rests on."
    return Grid(title, ("what", "required", OURS, "runs", ""), body, (1, 2, 3), note)


def _limit(bar: Bar) -> str:
    return f"{bar.sign} {bar.limit:.0%}" if bar.unit == "%" else f"{bar.sign} {bar.limit:g}"


def _ours(bar: Bar) -> str:
    if bar.unit == "runs":
        return NOTHING if bar.ours is None else f"{bar.ours:,.0f}"
    return share(bar.ours, bar.signed) if bar.unit == "%" else figure(bar.ours)


def groups_grid(title: str, found: Sequence[Group]) -> Grid:
    """Errors by group."""
    body = tuple((group.by, group.name, *_step_cells(group.statistics)) for group in found)
    note = "Error: mean of |predicted / published - 1|. Bias: its signed mean; below 0 the predictions are too fast."
    note += " Inside: published times within [low, high], whose median width is high/low."
    return Grid(title, ("by", "", *STEP_HEAD), body, STEP_FIGURES, note, NEEDED_LEAST)


def _step_cells(one: StepStatistics) -> tuple[str, ...]:
    return (
        f"{one.rows:,}",
        f"{one.count:,}",
        share(one.mean_absolute_error),
        share(one.mean_error, signed=True),
        share(one.median_error, signed=True),
        share(one.p95_absolute_error),
        share(one.coverage),
        figure(one.median_high_over_low),
    )


def ranking_grid(report: ValidateReport) -> Grid:
    """Order, correlation and regret by what the series vary."""
    body = tuple(
        (
            one.varies_class,
            f"{one.rankings:,}",
            f"{one.pairs:,}",
            share(one.right_share),
            f"{one.spearman_count:,}",
            figure(one.mean_spearman),
            share(one.mean_regret),
            share(one.worst_regret),
        )
        for one in report.ranking_summaries
    )
    head = ("varies", "rankings", "pairs", "right order", "of 3 or more", "Spearman", "mean regret", "worst regret")
    note = "A ranking: runs of one series, chip and workload by device seconds a token; pairs that differ by over 5%."
    note += " Regret: the published price of the plan predicted fastest over that of the fastest one, less 1."
    return Grid("Plans in the right order", head, body, tuple(range(1, len(head))), note, (4, 1))


def series_grid(found: Iterable[Ranking], title: str = "Every ranking") -> Grid:
    """Ranking by ranking, the largest regret first."""
    order = sorted(found, key=lambda one: (one.varies_class != PLAN, -one.regret, one.series, one.workload))
    body = tuple(
        (
            one.series,
            one.varies or "",
            one.varies_class,
            f"{one.chip}, {one.workload}",
            f"{one.runs:,}",
            share(one.spread),
            f"{one.right:,} of {one.pairs:,}",
            figure(one.spearman),
            share(one.regret),
            "" if one.picked == one.best else one.picked,
        )
        for one in order
    )
    head = ("series", "varies", "class", "of", "runs", "spread", "right pairs", "Spearman", "regret", "picked instead")
    return Grid(title, head, body, (4, 5, 6, 7, 8), optional=(2, 5, 3, 4, 1))


def baselines_grid(report: ValidateReport) -> Grid:
    """Ours and the naive predictions on the runs that all of them predict."""
    known = [{row.id for row in rows if row.predicted} for rows in report.baselines.values()]
    common = set.intersection(*known) if known else set()
    body = []
    for name, rows in {OURS: report.rows, **report.baselines}.items():
        same = [row for row in rows if row.id in common]
        one = step_statistics(same)
        plans = [ranking for ranking in rankings(same, report.class_of) if ranking.varies_class == PLAN]
        order = summary(PLAN, plans)
        cells = (share(one.mean_absolute_error), share(one.mean_error, signed=True), share(one.p95_absolute_error))
        ranked = (share(order.right_share), figure(order.mean_spearman), share(order.mean_regret))
        body.append((name, f"{one.count:,}", *cells, *ranked))
    head = ("", "compared", "error", "bias", "95th pct", "right order", "Spearman", "mean regret")
    right = tuple(range(1, len(head)))
    note = "Fractions of the baselines are medians over the fitting set. Ties of predictions count as wrong order."
    return Grid("Against naive baselines, on the same runs", head, tuple(body), right, note, (4, 6))


def rivals_grid(report: ValidateReport) -> Grid:
    """Other predictors' published errors beside ours."""
    body = tuple(
        (
            one.rival.name,
            share(one.rival.mean_absolute_error),
            share(one.rival.worst_absolute_error),
            share(one.ours.mean_absolute_error),
            share(one.ours.worst_absolute_error),
            f"{one.ours.count:,}",
            "the same runs" if one.rival.same_runs else "runs like its own",
            one.rival.source,
        )
        for one in report.beside
    )
    head = ("predictor", "its error", "its worst", "our error", "our worst", "runs", "on", "source of its figures")
    return Grid("Against other predictors", head, body, (1, 2, 3, 4, 5), optional=(7, 2, 4))


def memory_grid(report: ValidateReport) -> Grid:
    """Errors of memory by what the published figure counts."""
    body = tuple(
        (one.memory_kind, f"{one.count:,}", share(one.mean_absolute_error), share(one.mean_error, signed=True),
         share(one.worst_absolute_error))
        for one in memory_statistics(report.rows)
    )
    head = ("published figure", "runs", "error", "bias", "worst")
    return Grid("Memory", head, body, (1, 2, 3, 4), verdict_words(report.verdicts))


def verdict_words(found: OutOfMemory) -> str:
    """What is said of runs that went out of memory, and of runs that ran."""
    said = [
        f"{count_words(found.oom_rows, 'run')} went out of memory: {found.refused:,} predicted not to fit",
        f"{len(found.called_fitting):,} predicted to fit{_named(found.called_fitting)}",
        f"{found.oom_rows - found.judged:,} without a verdict",
    ]
    ran = f"Of {count_words(found.ran, 'run')} that ran {len(found.false_misses):,} are predicted to miss by over 10%"
    ran += f" of the memory{_named(found.false_misses)}, {len(found.false_refusals):,} not to fit at all."
    return f"{', '.join(said)}. {ran}"


def _named(ids: Sequence[str]) -> str:
    rest = f" and {len(ids) - SHOWN_IDS:,} more" if len(ids) > SHOWN_IDS else ""
    return f" ({', '.join(ids[:SHOWN_IDS])}{rest})" if ids else ""


def left_out_grid(report: ValidateReport, left_by: str, by: Sequence[str] = ("all", "group", "grade")) -> Grid:
    """Errors where the parameters were fitted without the run's own source or framework, beside the calibrated ones."""
    rows = report.left_out[left_by]
    usual = {(group.by, group.name): group.statistics for group in groups(report.rows, by)}
    body = tuple(
        (one.by, one.name, *_step_cells(one.statistics), _usual(usual.get((one.by, one.name))))
        for one in groups(rows, by)
    )
    head = ("by", "", *STEP_HEAD, "calibrated")
    note = f"Each run is predicted by parameters that were fitted without its {left_by}."
    title = f"Leaving out a run's {left_by}"
    return Grid(title, head, body, (*STEP_FIGURES, len(head) - 1), note, NEEDED_LEAST)


def _usual(one: StepStatistics | None) -> str:
    return NOTHING if one is None else share(one.mean_absolute_error)


def parameters_grid(report: ValidateReport) -> Grid:
    """The numbers of the calibration with their priors."""
    order = sorted(report.parameters, key=lambda one: not one.fitted)
    body = tuple(
        (one.name, _value(one.value), _unit(one.unit), _value(one.prior), "fitted" if one.fitted else "", one.source)
        for one in order
    )
    fitted = sum(one.fitted for one in order)
    note = f"{count_words(fitted, 'number')} fitted, {len(order) - fitted:,} taken from their sources."
    return Grid("Parameters", ("name", "value", "unit", "prior", "", "source of the prior"), body, (1, 3), note)


def _value(value: object) -> str:
    if isinstance(value, tuple | list):
        return " to ".join(map(_value, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.4g}"
    return NOTHING if value is None else str(value)


def _unit(unit: str) -> str:
    return "" if unit in ("", "1") else unit
