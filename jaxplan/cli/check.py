"""`jaxplan check PLAN`: the host's partitioner and the target's compiler on one plan: fits or not, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.cli.request import as_it_is_now
from jaxplan.compile.environment import available
from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError, MissingError
from jaxplan.plan.files import read
from jaxplan.plan.record import PlanRecord
from jaxplan.report.check import check_json, check_lines, verdict

DOES_NOT_FIT = 1


def check(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    jobs: Annotated[int, typer.Option(help="compiles at a time")] = 2,
    init: Annotated[bool, typer.Option("--init", help="also compile the program that makes the initial state")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Partition and compile one plan for its machine: does it fit, by how much, what fills the peak."""
    if jobs < 1:
        raise InputError(f"--jobs {jobs}", "at least 1")
    record = as_it_is_now(read(plan))
    found = _evidence(record, jobs, init)
    for evidence in found:
        if evidence.status == "failed" and evidence.message.startswith("InputError: "):
            raise InputError(f"{plan}: {evidence.message.removeprefix('InputError: ')}")
    if as_json:
        print_json(check_json(record, found))
    else:
        stdout = console(sys.stdout)
        for line in check_lines(record, found):
            stdout.print(line, markup=False)
    return DOES_NOT_FIT if verdict(record, found).fits is False else 0


def _evidence(record: PlanRecord, jobs: int, init: bool) -> list[Evidence]:
    """What each tier says, with a line on standard error as it does.

    Raises:
        MissingError: no compiler here can judge the plan.
    """
    found: list[Evidence] = []
    plan, stderr = record.plan, console(sys.stderr)
    with Tiers(plan.machine, jobs) as tiers:
        for note in tiers.notes:
            stderr.print(f"note: {note}", markup=False)
        futures = [tiers.partition(plan), tiers.compile(plan, init=init, buffers=True)]
        for future in futures:
            if future is not None:
                found.append(future.result())
                stderr.print(f"{found[-1].tier} {found[-1].status} {found[-1].seconds:.1f} s", markup=False)
        if not found:
            what = f"Nothing here can partition or compile a plan of {plan.machine.devices:,} devices"
            raise MissingError(what, available(tiers.target or "cuda").install)
    return found
