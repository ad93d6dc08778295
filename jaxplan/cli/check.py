"""`jaxplan check PLAN`: the host's partitioner and the target's compiler on one plan: fits or not, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jaxplan.cli.request import as_it_is_now
from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.plan.files import read
from jaxplan.report.check import check_json, check_lines

DOES_NOT_FIT = 1


def check(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    jobs: Annotated[int, typer.Option(help="compiles at a time")] = 2,
    init: Annotated[bool, typer.Option("--init", help="also compile the program that makes the initial state")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Partition and compile one plan for its machine: does it fit, by how much, what fills the peak."""
    record = as_it_is_now(read(plan))
    stderr, stdout = Console(stderr=True, highlight=False), Console(highlight=False, soft_wrap=True)
    found: list[Evidence] = []
    with Tiers(record.plan.machine, jobs) as tiers:
        for note in tiers.notes:
            stderr.print(f"note: {note}", markup=False)
        futures = [tiers.partition(record.plan), tiers.compile(record.plan, init=init, buffers=True)]
        for future in futures:
            if future is not None:
                found.append(future.result())
                stderr.print(f"{found[-1].tier} {found[-1].status} {found[-1].seconds:.1f} s", markup=False)
    if as_json:
        print(json.dumps(check_json(record, found), indent=1))
    else:
        for line in check_lines(record, found):
            stdout.print(line, markup=False)
    good = any(evidence.ok for evidence in found) and not any(evidence.refuses for evidence in found)
    return 0 if good else DOES_NOT_FIT
