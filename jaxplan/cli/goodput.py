"""`jaxplan goodput [PLAN]`: how often to save, how many spares, what share of time is useful, days and money."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jaxplan.cli.console import console, print_json
from jaxplan.cli.degraded import LOST, degraded_report, parse_lost
from jaxplan.cli.goodput_flags import Flags, checked
from jaxplan.cli.goodput_inputs import report_of
from jaxplan.cli.search import INTERRUPTED
from jaxplan.cli.stamped import new_folder, stamp
from jaxplan.errors import InputError
from jaxplan.goodput.assessment import KINDS
from jaxplan.plan.files import read, save
from jaxplan.report.degraded_text import degraded_lines
from jaxplan.report.goodput import goodput_json
from jaxplan.report.goodput_text import goodput_lines

RUNS = Path("jaxplan-runs")


def goodput(
    plan: Annotated[Path | None, typer.Argument(help="a plan.json; without one everything is given by hand")] = None,
    nodes: Annotated[int | None, typer.Option(help="hosts of the job")] = None,
    chips_per_node: Annotated[int | None, typer.Option(help="for money; 8 without a plan")] = None,
    state_bytes: Annotated[str | None, typer.Option(help="parameters and optimizer state: 5.7TB")] = None,
    storage: Annotated[
        str | None, typer.Option("--storage-bytes-per-s", help="host=1GB/s (each host) and/or total=2TB/s (the store)")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--failures-per-1000-node-days", help="that stop the job (default: published)")
    ] = None,
    fleet: Annotated[str | None, typer.Option("--failures", help="a published rate: llama3-405b, rsc-1, rsc-2")] = None,
    restart: Annotated[
        str | None,
        typer.Option(
            help="but for the restore: 10min, or phases: detection=60s,initialization=2min,training-preparation=..,"
            "program-startup=..,data-loading=.."
        ),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="async, or blocking")] = "async",
    block: Annotated[str | None, typer.Option(help="how long a save stops training")] = None,
    write: Annotated[str | None, typer.Option(help="from there until it is durable")] = None,
    restore: Annotated[str | None, typer.Option(help="how long a restore takes")] = None,
    interval: Annotated[str | None, typer.Option(help="work between two saves (default: the best)")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="a second, local level: block=2s,restore=30s,share=0.8 (of failures that leave it)"),
    ] = None,
    step_time: Annotated[str | None, typer.Option(help="of an optimizer step (default: the plan's)")] = None,
    tokens_per_step: Annotated[str | None, typer.Option(help="default: the plan's batch")] = None,
    tokens: Annotated[str | None, typer.Option(help="to train on, for days and money: 15e12 or 15T")] = None,
    price: Annotated[float | None, typer.Option("--price-per-chip-hour", "--price", help="in any currency")] = None,
    spares: Annotated[int | None, typer.Option(help="spare nodes (default: enough for --spares-probability)")] = None,
    spares_probability: Annotated[float | None, typer.Option(help="that spares are enough: 0.99")] = None,
    repair: Annotated[str | None, typer.Option(help="until a failed node is back: 24h")] = None,
    weibull: Annotated[float | None, typer.Option(help="shape of bursts of failures, simulated beside")] = None,
    seed: Annotated[int, typer.Option(help="of the simulation")] = 0,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="also plans for what is left when hosts or slices are missing")
    ] = False,
    lost: Annotated[str, typer.Option(help="with --degraded: how many are missing")] = LOST,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="with --degraded: estimates alone")] = False,
    out: Annotated[
        Path | None, typer.Option(help=f"a new folder below it for the result (default: beside the plan, or {RUNS})")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """How often to save, what share of time is useful work, how many spares, what to improve first, days and money."""
    if checkpoint not in KINDS:
        raise InputError(f"--checkpoint {checkpoint}", f"one of {', '.join(KINDS)}")
    if seed < 0:
        raise InputError(f"--seed {seed}", "at least 0")
    flags = Flags(
        nodes=nodes, chips_per_node=chips_per_node, state_bytes=state_bytes, step_time=step_time,
        tokens_per_step=tokens_per_step, storage=storage, rate=rate, fleet=fleet, restart=restart,
        checkpoint=checkpoint, block=block, write=write, restore=restore, interval=interval, local=local,
        tokens=tokens, price=price, spares=spares, spares_probability=spares_probability, repair=repair,
        weibull=weibull, seed=seed,
    )
    missing, record = parse_lost(lost), read(plan) if plan is not None else None
    if degraded and record is None:
        raise InputError("--degraded without a plan", "a plan.json", "`jaxplan search`, which writes one")
    report = report_of(flags, record, plan)
    document = checked(lambda: goodput_json(report))
    path = _place(plan, out)
    save(path, json.dumps(document, indent=1) + "\n")
    stdout = console(sys.stdout)
    if not as_json:
        _print(stdout, goodput_lines(report, stdout.width))
    code = 0
    if degraded and record is not None:
        found = degraded_report(record, path, report, missing, compile_ahead=not no_compile)
        document["degraded"] = found.to_json()
        save(path, json.dumps(document, indent=1) + "\n")
        if not as_json:
            _print(stdout, degraded_lines(found, stdout.width))
        code = INTERRUPTED if found.stopped else 0
    if as_json:
        print_json(document)
    console(sys.stderr).print(f"Written to {path}", markup=False)
    return code


def _print(stdout: Console, lines: Iterable[str]) -> None:
    for line in lines:
        stdout.print(line, markup=False)


def _place(plan: Path | None, out: Path | None) -> Path:
    """`goodput-2.json` beside `plan-2.json`; without a plan, or elsewhere, in a new folder."""
    if plan is not None and out is None:
        number = plan.stem.removeprefix("plan") if plan.stem.startswith("plan") else f"-{plan.stem}"
        return plan.parent / f"goodput{number}.json"
    return new_folder(out or RUNS, stamp("goodput")) / "goodput.json"
