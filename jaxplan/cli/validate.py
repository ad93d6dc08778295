"""`jaxplan validate`: predictions beside published, measured runs: errors, order of plans, memory, worst cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.errors import InputError
from jaxplan.machine.files import folder
from jaxplan.plan.files import save
from jaxplan.report.validate import CALIBRATED, ValidateReport, validate_json
from jaxplan.report.validate_page import validate_page
from jaxplan.report.validate_text import validate_renderables
from jaxplan.validate.baselines import baselines
from jaxplan.validate.row import Row

PARTS = ("check", "fit", "all")
PIPE_COLUMNS = 400  # nothing is folded or cut where another program reads
RECORD = "published_accuracy.json"
LEFT_OUT = {"source": "--leave-one-source-out", "framework": "--leave-one-framework-out"}


def validate(
    runs: Annotated[
        Path | None, typer.Option("--runs", help="a TOML file of runs (default: the published runs that come along)")
    ] = None,
    part: Annotated[str, typer.Option(help="check (nothing was fitted to it), fit, or all")] = "all",
    leave_one_source_out: Annotated[
        bool, typer.Option(LEFT_OUT["source"], help="predict each run by a fit without its source")
    ] = False,
    leave_one_framework_out: Annotated[
        bool, typer.Option(LEFT_OUT["framework"], help="predict each run by a fit without its framework")
    ] = False,
    worst: Annotated[int, typer.Option(help="runs that are furthest off to show")] = 10,
    page: Annotated[Path | None, typer.Option(help="also write everything as a page of markdown")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"also write the rows to calibrations/{RECORD}")] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="first fit the calibration again, to the fitting set, and write it")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Predict published runs: error by chip, framework and size, worst cases, order of plans, memory, baselines."""
    asked = [by for by, wanted in zip(LEFT_OUT, (leave_one_source_out, leave_one_framework_out), strict=True) if wanted]
    if part not in PARTS:
        raise InputError(f"--part {part}", f"one of {', '.join(PARTS)}")
    if worst < 0:
        raise InputError(f"--worst {worst}", "0 or more")
    if len(asked) > 1:
        raise InputError(" and ".join(LEFT_OUT.values()), "one of them at a time")
    if write and (runs is not None or part != "all" or asked):
        raise InputError("--write records the runs that come along, all of them", suggestion="--json > FILE instead")
    stderr = console(sys.stderr)
    if fit:
        stderr.print(f"Calibration written to {_fitted()}", markup=False)
    report = _report(runs, part, asked[0] if asked else None, everything=page is not None)
    if page is not None:
        save(page, validate_page(report, worst))
        stderr.print(f"Page written to {page}", markup=False)
    if write:
        path = folder("profiling/calibrations") / RECORD
        save(path, json.dumps(validate_json(report), indent=1) + "\n")
        stderr.print(f"Rows written to {path}", markup=False)
    if as_json:
        print_json(validate_json(report))
    elif page is None and not write:
        stdout = console(sys.stdout, PIPE_COLUMNS)
        for shown in validate_renderables(report, worst, stdout.width, plain_text=not stdout.is_terminal):
            stdout.print(shown, markup=False, soft_wrap=False)
    return 0


def _report(path: Path | None, part: str, left_by: str | None, everything: bool) -> ValidateReport:
    """Read, predict, compare.

    Args:
        left_by: predict each run by a fit without its `source` or `framework`; or None.
        everything: what a page shows, which no other output needs: each run left out of the fit as well.
    """
    # here, so that no other command waits for them
    from jaxplan.machine.calibration import load
    from jaxplan.validate.fit import left_out
    from jaxplan.validate.predict import predict_all
    from jaxplan.validate.published import bundled, read

    found, known = read(path or bundled()), load()
    ours = found if path is None else read(bundled())   # a user's file may have no run that anything can be fitted to

    def without(by: str) -> tuple[Row, ...]:
        return left_out(found, by=by, calibration=known, known=ours)

    rows = without(left_by) if left_by else predict_all(found, known)
    fitted = rows if path is None else predict_all(ours, known)
    shown = _of_part(rows, part)
    left = {by: _of_part(without(by), part) for by in LEFT_OUT} if everything else {}
    return ValidateReport(
        rows=shown,
        source="profiling/published/runs.toml" if path is None else str(path),
        part=part,
        calibration=f"each run predicted by a fit without its {left_by}" if left_by else CALIBRATED,
        parameters=tuple(known.parameters),
        baselines=baselines(shown, fitted),
        left_out=left,
    )


def _fitted() -> Path:
    """Fits the calibration to the fitting set of the runs that come along; the file that it was written to."""
    from jaxplan.machine import calibration
    from jaxplan.validate.fit import calibrated
    from jaxplan.validate.published import read

    found = calibrated(read(), calibration.load())
    save(calibration.path(), calibration.written(found))
    calibration.load.cache_clear()
    return calibration.path()


def _of_part(rows: tuple[Row, ...], part: str) -> tuple[Row, ...]:
    return tuple(row for row in rows if part in ("all", row.part))
