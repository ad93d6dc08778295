"""`jaxplan compare PROFILE`: where did the prediction miss? A profile beside its plan, or a profile alone."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.compile.hlo import Module
from jaxplan.errors import InputError
from jaxplan.plan.files import read as read_plan
from jaxplan.plan.files import write_whole
from jaxplan.plan.record import PlanRecord
from jaxplan.profile.compare import compare as compared
from jaxplan.profile.measured import measure
from jaxplan.profile.predicted import AGAINST, Predicted
from jaxplan.profile.program import read_text, text_beside
from jaxplan.profile.trace import Trace
from jaxplan.profile.trace import read as read_trace
from jaxplan.report.compare_text import compare_lines
from jaxplan.report.finite import finite

RUN, PLAN, RESULT = "run.json", "plan.json", "compare.json"
EXAMPLE = "--mesh data=4,tensor=2"


def compare(
    profile: Annotated[Path, typer.Argument(help="a profile: its folder, a run's folder, or an xplane.pb")],
    plan: Annotated[Path | None, typer.Option(help="the plan.json that ran (default: the run folder's)")] = None,
    hlo: Annotated[
        Path | None, typer.Option(help="the program's compiled HLO as text (default: the profile's own)")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(help="the mesh that the program ran on: data=4,tensor=2 (default: the plan's)")
    ] = None,
    step_time: Annotated[
        float | None, typer.Option(help="the step time in seconds that was expected, where no plan predicts one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Where did the prediction miss? A profile's ledger beside its plan's, and what explains the gap."""
    if step_time is not None and not (math.isfinite(step_time) and step_time > 0):
        raise InputError(f"--step-time {step_time:g}", "seconds above 0")
    axes = None if mesh is None else mesh_of(mesh)
    run = _run(profile)
    record, beside = _record(profile, plan, run)
    trace = read_trace(profile)
    module = read_text(hlo) if hlo is not None else _module(trace, profile)
    if axes is None and record is not None:
        axes = _sizes(record, run)
    measured = measure(trace, module, axes)
    found = compared(measured, record, _predicted(run), step_time)
    if _scaled(run):
        note = f"the run was smaller than the plan ({_scaled(run).get('why', '')}): the plan's own times are not shown"
        found = replace(found, notes=(*found.notes, note))
    if beside:
        stderr = console(sys.stderr)
        stderr.print(f"note: compared with {beside} (--plan names another)", markup=False)
    document = finite(found.to_json())
    if run is not None or beside:
        _keep(profile / RESULT, document)
    if as_json:
        print_json(document)
    else:
        stdout = console(sys.stdout)
        for line in compare_lines(found, stdout.width):
            stdout.print(line, markup=False)
    return 0


def mesh_of(text: str) -> dict[str, int]:
    """`data=4,tensor=2` as sizes by name.

    Raises:
        InputError: another form.
    """
    sizes: dict[str, int] = {}
    for part in text.replace(" ", ",").split(","):
        name, _, size = part.partition("=")
        if not part:
            continue
        if not name or not size.isdigit() or int(size) < 1 or name in sizes:
            raise InputError(f"--mesh {text}", "axes with their sizes, each once, major first", EXAMPLE)
        sizes[name] = int(size)
    if not sizes:
        raise InputError(f"--mesh {text!r}", "axes with their sizes, major first", EXAMPLE)
    return sizes


def _run(profile: Path) -> Mapping[str, Any] | None:
    """What `jaxplan run` wrote into the folder; None where it did not."""
    path = profile / RUN
    if not profile.is_dir() or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})", "what `jaxplan run` writes") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is no result of a run", "what `jaxplan run` writes")
    return found


def _record(
    profile: Path, plan: Path | None, run: Mapping[str, Any] | None
) -> tuple[PlanRecord | None, Path | None]:
    """(the plan that ran, its file where nobody named it)."""
    if plan is not None:
        return read_plan(plan), None
    named = [Path(run["plan"])] if run is not None and isinstance(run.get("plan"), str) else []
    for path in [*named, *(profile / one.name for one in named), profile / PLAN]:
        if path.is_file():
            return read_plan(path), path
    return None, None


def _scaled(run: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How a run differs from its plan in size; empty where it does not."""
    ran_on = run.get("ran_on") if run is not None else None
    scaled = ran_on.get("scaled") if isinstance(ran_on, dict) else None
    return scaled if isinstance(scaled, dict) else {}


def _sizes(record: PlanRecord, run: Mapping[str, Any] | None) -> dict[str, int]:
    """The mesh that the program ran on: the plan's, or what of it fitted the attached devices."""
    sizes = dict(record.plan.sizes)
    axes = _scaled(run).get("axes")
    for name, pair in axes.items() if isinstance(axes, dict) else ():
        sizes[name] = int(pair[1])
    return sizes


def _predicted(run: Mapping[str, Any] | None) -> tuple[Predicted, ...] | None:
    """What was predicted of a run that was scaled down; None where the plan's own prediction counts."""
    if run is None or not _scaled(run):
        return None
    rows = run.get("compared") or []
    ledgers = {
        tier: {row["name"]: row[f"{tier}_s"] for row in rows if row.get(f"{tier}_s") is not None} for tier in AGAINST
    }
    return tuple(Predicted(tier, ledger) for tier, ledger in ledgers.items() if ledger)


def _module(trace: Trace, profile: Path) -> Module | None:
    """The program's text beside the profile, where the profile itself does not hold it."""
    program = trace.programs[trace.main]
    if program.proto:
        return None
    folders = [profile, *(path.parent for path in trace.paths)]
    return next((found for folder in folders if (found := text_beside(folder, program.name)) is not None), None)


def _keep(path: Path, document: Any) -> None:
    """Writes the result into the run's folder, whole or not at all; a folder that takes none does not matter."""
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        console(sys.stderr).print(f"note: {path} cannot be written: {error.strerror}", markup=False)
