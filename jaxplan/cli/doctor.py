"""`jaxplan doctor`: what works here, and how to install what does not."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.errors import MissingError
from jaxplan.run.doctor import Check, examine, works
from jaxplan.units import format_seconds

SCHEMA = "jaxplan.doctor/1"
NAME_WIDTH = 28


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Check versions, prove each compiler by a tiny compile, and say how to install what is missing."""
    stdout = console(sys.stdout)
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            stdout.print(line(check), markup=False)
    if as_json:
        print_json(to_json(checks))
    elif not works(checks):
        stdout.print("jaxplan cannot work here before what is missing above is installed.")
    else:
        stdout.print("jaxplan works here.")
    return 0 if works(checks) else MissingError.exit_code


def line(check: Check) -> str:
    """One check as one line."""
    took = f" in {format_seconds(check.seconds)}" if check.seconds is not None else ""
    fix = f"   {check.fix}" if check.fix else ""
    return f"{check.state:<8} {check.name:<{NAME_WIDTH}} {check.detail}{took}{fix}"


def to_json(checks: list[Check]) -> dict:
    """All checks as plain data, schema `jaxplan.doctor/1`."""
    rows = [dataclasses.asdict(check) for check in checks]
    return {"schema": SCHEMA, "works": works(checks), "checks": rows}
