"""The tables of `validate` that name single runs, which the terminal and the page share. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterable

from jaxplan.report.grid import Grid
from jaxplan.report.validate import ValidateReport
from jaxplan.report.validate_tables import NOTHING, SHOWN_IDS, share
from jaxplan.report.words import count_words
from jaxplan.units import GB, format_range_seconds, format_seconds, significant
from jaxplan.validate.row import Row
from jaxplan.validate.statistics import worst

SHOWN_PARTS = 4         # of a ledger in one cell


def worst_grid(report: ValidateReport, count: int) -> Grid:
    """The runs that are furthest off, with the largest parts of their ledgers."""
    found = worst(report.rows, count)
    body = tuple(
        (
            row.id,
            f"{row.chip}, {row.framework}",
            row.grade,
            published_time(row),
            predicted_time(row),
            share(row.error, signed=True),
            ledger_words(row),
        )
        for row in found
    )
    head = ("run", "where", "grade", "published", "predicted (low to high)", "error", "ledger")
    return Grid("The runs furthest off", head, body, (3, 5))


def ledger_times(row: Row) -> str:
    """Every part of the predicted step, the longest first."""
    order = sorted(row.ledger_s.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in order if seconds)


def ledger_words(row: Row, parts: int = SHOWN_PARTS) -> str:
    """`matmul 61%, recompute 20%, exposed fsdp 12%, 5 others 7%`."""
    total = row.predicted_step_time_s or 1.0
    order = sorted(row.ledger_s.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{name} {seconds / total:.0%}" for name, seconds in order[:parts]]
    rest = order[parts:]
    if rest:
        shown.append(f"{count_words(len(rest), 'other')} {sum(seconds for _, seconds in rest) / total:.0%}")
    return ", ".join(shown)


def reasons_grid(report: ValidateReport, shown: int = SHOWN_IDS) -> Grid:
    """Runs that are not predicted, by reason."""
    body = tuple(
        (reason, f"{len(ids):,}", ", ".join(ids[:shown]) + (f" and {len(ids) - shown:,} more" * (len(ids) > shown)))
        for reason, ids in report.reasons
    )
    return Grid("Not predicted", ("reason", "runs", "which"), body, (1,))


def doubtful_grid(report: ValidateReport) -> Grid:
    """Runs whose published figure or inputs are doubtful; they are kept in every figure."""
    found = [row for row in report.rows if row.doubt]
    order = sorted(found, key=lambda row: (-abs(row.error or 0.0), row.id))
    body = tuple((row.id, row.grade, share(row.error, signed=True), row.doubt or "") for row in order)
    return Grid("Doubtful runs, kept", ("run", "grade", "error", "doubt"), body, (2,))


def runs_grid(rows: Iterable[Row]) -> Grid:
    """Every run: published beside predicted."""
    body = tuple(
        (
            row.id,
            row.grade,
            row.part,
            published_time(row),
            predicted_time(row),
            share(row.error, signed=True),
            _gigabytes(row.published_memory_bytes),
            _gigabytes(row.predicted_memory_bytes),
            _fits(row),
        )
        for row in rows
    )
    head = ("run", "grade", "part", "published", "predicted", "error", "GB", "GB predicted", "fits")
    return Grid("Every run", head, body, (3, 4, 5, 6, 7))


def published_time(row: Row) -> str:
    return NOTHING if row.published_step_time_s is None else format_seconds(row.published_step_time_s)


def predicted_time(row: Row) -> str:
    """With its bounds, in one unit."""
    value, low, high = row.predicted_step_time_s, row.low_s, row.high_s
    return NOTHING if value is None or low is None or high is None else format_range_seconds(value, low, high)


def _gigabytes(count: float | None) -> str:
    return NOTHING if count is None else significant(count / GB)


def _fits(row: Row) -> str:
    said = {True: "fits", False: "does not fit", None: ""}[row.fits]
    return f"{said} (went out of memory)".strip() if row.oom else said
