"""`jaxplan explain PLAN`: the mathematics of one plan: ledgers, roofline, axes and links, what to change, why not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pydantic
import typer

from jaxplan.cli.calibrated import HELP, at_rates_of
from jaxplan.cli.console import console, print_json
from jaxplan.cli.request import as_it_is_now
from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError
from jaxplan.plan.files import AGAIN, read
from jaxplan.plan.record import PlanRecord
from jaxplan.plan.sharding import AXES
from jaxplan.report.explain import ExplainReport
from jaxplan.report.explain_json import explain_json
from jaxplan.report.explain_text import explain_lines
from jaxplan.search.asked import Asked, parse
from jaxplan.search.explain import anatomy, correction
from jaxplan.search.neighbours import neighbours, normal, sizes_of
from jaxplan.search.why_not import broken_rule, why_not
from jaxplan.workload.table import Table

AGAINST = 1         # exit code: the plan does not fit, or cannot run
JUDGES = ("partitioned", "compiled")


def explain(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    other: Annotated[
        str | None, typer.Option("--why-not", help="another plan to compare with: data=8,tensor=16[,remat=full,...]")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Why a plan takes the time and memory it does: ledgers, rooflines, links, the bottleneck, what to change."""
    record = at_rates_of(as_it_is_now(read(plan)), calibration)
    asked = None if other is None else parse(other, record.plan.machine)
    report = report_of(plan, record, _table(record), asked)
    if as_json:
        print_json(explain_json(report))
    else:
        stdout = console(sys.stdout)
        for line in explain_lines(report, stdout.width):
            stdout.print(line, markup=False)
    return AGAINST if report.verdict.fits is False or report.broken else 0


def report_of(path: Path, record: PlanRecord, table: Table, asked: Asked | None = None) -> ExplainReport:
    """Everything that is explained of a plan.

    Args:
        path: of its file, for messages.
        table: of its workload.

    Raises:
        InputError: the file's evidence is not what a search writes.
    """
    evidence = _evidence(path, record)
    try:
        known = correction(record)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: its evidence holds no figures ({error})", suggestion=AGAIN) from error
    found = anatomy(record.plan, table)
    return ExplainReport(
        record=record,
        anatomy=found,
        correction=known,
        neighbours=neighbours(record.plan, table, known.memory),
        broken=_broken(record, table),
        evidence=evidence,
        why_not=None if asked is None else why_not(asked, record.plan, found.estimate, table, known.memory),
        uncovered=table.uncovered,
    )


def _table(record: PlanRecord) -> Table:
    stderr = console(sys.stderr)
    with Tiers(record.plan.machine, 1) as tiers:
        table = tiers.trace(record.plan.workload)
        for warning in tiers.cache.warnings:
            stderr.print(f"note: {warning}", markup=False)
    return table


def _evidence(path: Path, record: PlanRecord) -> dict[str, Evidence]:
    """What compilers said of the plan as it is; nothing where it was changed since.

    Raises:
        InputError: the file's evidence is not what a search writes.
    """
    if record.stale:
        return {}
    try:
        reader = pydantic.TypeAdapter(Evidence)
        return {tier: reader.validate_python(record.evidence[tier]) for tier in JUDGES if tier in record.evidence}
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: evidence: key {key}: {first['msg']}", suggestion=AGAIN) from error


def _broken(record: PlanRecord, table: Table) -> str:
    """The rule of a search that a plan breaks (one that was edited by hand), or an empty text."""
    plan = normal(record.plan)
    given = ("microbatches", "zero1", "zero2", "sequence_sharding", "context_attention", "schedule", "repeats")
    asked = Asked("", plan.sizes, {name: getattr(plan, name) for name in given})
    return broken_rule(dict(zip(AXES, sizes_of(plan), strict=True)), asked, plan, table)
