"""`jaxplan check PLAN`: the host's partitioner and the target's compiler on one plan: fits or not, and why."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxplan.cli.calibrated import HELP, at_rates_of
from jaxplan.cli.console import console, print_json
from jaxplan.cli.request import as_it_is_now
from jaxplan.cli.stamped import new_folder, stamp
from jaxplan.cli.views import write_views
from jaxplan.compile.environment import available
from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError, JaxplanError, MissingError
from jaxplan.plan.files import read, write, write_whole
from jaxplan.plan.record import PlanRecord
from jaxplan.report.check import check_json, check_lines, verdict

DOES_NOT_FIT = 1


def check(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    jobs: Annotated[int, typer.Option(help="compiles at a time")] = 2,
    out: Annotated[Path, typer.Option(help="folder for the results")] = Path("jaxplan-runs"),
    init: Annotated[bool, typer.Option("--init", help="also compile the program that makes the initial state")] = False,
    calibration: Annotated[str | None, typer.Option(help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Partition and compile one plan for its machine: does it fit, by how much, what fills the peak."""
    if jobs < 1:
        raise InputError(f"--jobs {jobs}", "at least 1")
    record = at_rates_of(as_it_is_now(read(plan)), calibration)
    with Tiers(record.plan.machine, jobs) as tiers:
        found = _evidence(tiers, record, init)
        for evidence in found:
            if evidence.status == "failed" and evidence.message.startswith("InputError: "):
                raise InputError(f"{plan}: {evidence.message.removeprefix('InputError: ')}")
        document = check_json(record, found)
        _keep(out, tiers, record, found, document)
    if as_json:
        print_json(document)
    else:
        stdout = console(sys.stdout)
        for line in check_lines(record, found):
            stdout.print(line, markup=False)
    return DOES_NOT_FIT if verdict(record, found).fits is False else 0


def _evidence(tiers: Tiers, record: PlanRecord, init: bool) -> list[Evidence]:
    """What each tier says, with a line on standard error as it does.

    Raises:
        MissingError: no compiler here can judge the plan.
    """
    found: list[Evidence] = []
    plan, stderr = record.plan, console(sys.stderr)
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


def _keep(out: Path, tiers: Tiers, record: PlanRecord, found: list[Evidence], document: dict[str, Any]) -> None:
    """The result in a folder of its own, for TensorBoard; where it cannot be written, that is a note."""
    stderr = console(sys.stderr)
    said = {evidence.tier: evidence.to_json() for evidence in found}
    compiled = next((evidence for evidence in found if evidence.tier == "compiled"), None)
    try:
        folder = new_folder(out, stamp("check"))
        judged = replace(record, evidence={**record.evidence, **said})
        path = write(judged, folder / "plan.json")
        write_whole(folder / "check.json", json.dumps(document, indent=1) + "\n")
        write_views(path, 1, judged, tiers.trace(record.plan.workload), compiled)
        stderr.print(f"kept in {folder}      look:  tensorboard --logdir {out}", markup=False)
    except (JaxplanError, OSError) as error:
        stderr.print(f"note: {error}", markup=False)
