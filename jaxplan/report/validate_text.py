"""`validate` for a terminal: where the errors are, then what is required and reached. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from jaxplan.report import validate_runs as runs
from jaxplan.report import validate_tables as tables
from jaxplan.report.columns import INDENT, paragraph
from jaxplan.report.grid import RULED_GAP, Grid, rich_table
from jaxplan.report.validate import ValidateReport
from jaxplan.report.words import count_words
from jaxplan.validate.ranking import Ranking
from jaxplan.validate.statistics import groups, worst
from jaxplan.validate.varies import PLAN

SHOWN_BY = ("all", "group", "chip", "framework", "kind", "model size", "devices", "grade", "part")
SHOWN_SERIES = 10


def validate_renderables(
    report: ValidateReport, shown_worst: int, width: int, plain_text: bool
) -> Iterator[RenderableType]:
    """What is printed, in order; the requirements last, where they are read."""
    for line in headline(report):
        yield Text(line)
    for grid in grids(report):
        yield from _grid(grid, width, plain_text)
    lines = worst_lines(report, shown_worst, width)
    if lines:
        yield Text("\nThe runs furthest off", style="bold")
        yield from map(Text, lines)
    yield from _grid(tables.bars_grid(report), width, plain_text)


def _grid(grid: Grid, width: int, plain_text: bool) -> Iterator[RenderableType]:
    yield Text(f"\n{grid.title}", style="bold")
    yield rich_table(grid.narrowed(width, RULED_GAP), plain_text)
    if grid.note:
        yield Text(grid.note)


def headline(report: ValidateReport) -> list[str]:
    """What was predicted, from where, by which calibration."""
    predicted = sum(row.predicted for row in report.rows)
    part = "" if report.part == "all" else f" of the part {report.part}"
    said = f"Runs      {report.source}: {count_words(len(report.rows), 'run')}{part}, {predicted:,} predicted"
    fitted = sum(parameter.fitted for parameter in report.parameters)
    return [said, f"Model     {report.calibration}; {count_words(fitted, 'fitted parameter')}"]


def worst_lines(report: ValidateReport, count: int, width: int) -> list[str]:
    """The runs that are furthest off, each with where it ran and its whole ledger."""
    lines = []
    for row in worst(report.rows, count):
        lines += paragraph(f"{tables.share(row.error, signed=True)}  {row.id}", width)
        where = f"grade {row.grade}, {row.chip} x {row.devices:,}, {row.framework}"
        times = f"published {runs.published_time(row)}, predicted {runs.predicted_time(row)}"
        lines += paragraph(f"{where}: {times}", width, INDENT)
        lines += paragraph(f"ledger: {runs.ledger_times(row)}", width, INDENT)
        if row.doubt:
            lines += paragraph(f"doubt: {row.doubt}", width, INDENT)
    return lines


def grids(report: ValidateReport) -> Iterator[Grid]:
    """The tables that have something to say."""
    every = (
        tables.groups_grid("Step time of all runs", groups(report.rows, SHOWN_BY)),
        tables.ranking_grid(report),
        tables.series_grid(_wrong(report), "Series that vary the plan, the largest regret first").first(SHOWN_SERIES),
        tables.memory_grid(report),
        tables.baselines_grid(report),
        tables.rivals_grid(report),
        *(tables.left_out_grid(report, by) for by in report.left_out),
        runs.reasons_grid(report),
    )
    return (grid for grid in every if grid.body)


def _wrong(report: ValidateReport) -> list[Ranking]:
    """Rankings of plans that are not wholly right."""
    plans = [ranking for ranking in report.rankings if ranking.varies_class == PLAN]
    return [ranking for ranking in plans if ranking.regret > 0 or ranking.right < ranking.pairs]
