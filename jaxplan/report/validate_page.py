"""`validate` as a page of markdown, which one command writes anew. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.report import validate_runs as runs
from jaxplan.report import validate_tables as tables
from jaxplan.report.grid import Grid, markdown
from jaxplan.report.validate import ValidateReport
from jaxplan.report.validate_text import SHOWN_BY
from jaxplan.report.words import count_words
from jaxplan.validate.statistics import groups

COMMAND = "python -m jaxplan validate --page docs/accuracy.md"
INTRODUCTION = """\
Step times and memory that jaxplan predicts, beside what others measured and published. Every run of the file is here:
one that cannot be predicted is listed with the reason, one whose published figure is doubtful is kept, with the doubt.
Runs are split by series and source into a fitting and a checking set (`profiling/published/split.toml`); no parameter
was fitted to the checking set. The formulas themselves were written by people who saw the errors of both: leaving out
whole sources and frameworks, below, says how far the parameters carry, and only runs that are not in this file how far
the formulas do."""


def validate_page(report: ValidateReport, worst: int) -> str:
    """The whole page, ending in a newline."""
    predicted = sum(row.predicted for row in report.rows)
    lines = [
        "# How true the predictions are",
        "",
        INTRODUCTION,
        "",
        f"{count_words(len(report.rows), 'run')}, {predicted:,} predicted; {report.calibration}.",
        f"Made by `{COMMAND}`; do not edit.",
        "",
    ]
    for section, grids in _sections(report, worst):
        shown = [grid for grid in grids if grid.body]
        if shown:
            lines += [f"## {section}", ""]
        for grid in shown:
            lines += markdown(grid)
    return "\n".join(lines).rstrip("\n") + "\n"


def _sections(report: ValidateReport, worst: int) -> Iterator[tuple[str, tuple[Grid, ...]]]:
    shown = report.judged_part
    part = [row for row in report.rows if row.part == shown]
    others = [row for row in part if row.grade == "B"]
    words = {"check": "the checking set", "fit": "the fitting set"}[shown]
    yield "What is required", (tables.bars_grid(report),)
    yield "Step time", (
        tables.groups_grid(f"Grade A runs of {words}", groups(report.judged, SHOWN_BY[:-2])),
        tables.groups_grid(f"Grade B runs of {words}", groups(others, SHOWN_BY[:-2])),
        tables.groups_grid("All runs", groups(report.rows, SHOWN_BY)),
        tables.groups_grid("By source", groups(report.rows, ("source",))),
        runs.worst_grid(report, worst),
    )
    yield "Order of plans", (tables.ranking_grid(report), tables.series_grid(report.rankings))
    yield "Memory", (tables.memory_grid(report),)
    yield "Beside other predictors", (tables.baselines_grid(report), tables.rivals_grid(report))
    yield "What was fitted", (
        tables.parameters_grid(report),
        *(tables.left_out_grid(report, by, ("all", "group", "grade", by)) for by in report.left_out),
    )
    yield "Runs", (runs.reasons_grid(report), runs.doubtful_grid(report), runs.runs_grid(report.rows))
