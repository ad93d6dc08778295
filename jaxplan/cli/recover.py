"""`jaxplan recover PLAN`: real faults on a training with the plan's own step: what comes back, and what it costs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.cli.request import as_it_is_now
from jaxplan.cli.stamped import new_folder, stamp, unwritable
from jaxplan.errors import InputError
from jaxplan.plan.files import read, write_whole
from jaxplan.report.grid import RULED_GAP, rich_table
from jaxplan.report.recover import grid, head_lines, last_lines, outcome_line, passed, recover_json
from jaxplan.run.drill.conduct import chosen, play
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage

FAILED = 1
DIR = "--dir FOLDER"


def recover(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    faults: Annotated[str, typer.Option(help="all, or names with commas between")] = "all",
    steps: Annotated[int, typer.Option(help="length of the training")] = 15,
    every: Annotated[int, typer.Option(help="steps from one checkpoint to the next")] = 5,
    folder: Annotated[Path, typer.Option("--dir", help="folder for the results")] = Path("jaxplan-runs"),
    plain: Annotated[bool, typer.Option("--plain", help="checkpoints by orbax alone, to compare")] = False,
    python: Annotated[str, typer.Option(help="interpreter with another jax, that restores as well")] = "",
    devices: Annotated[int | None, typer.Option(help="so many virtual CPU devices, not what is attached")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Kill, hang, corrupt and fill up a small training with the plan's own step, and see whether it recovers."""
    which = chosen(faults)
    record = as_it_is_now(read(plan))
    if python and shutil.which(python) is None:
        raise InputError(f"--python {python}", "an interpreter that can be run")
    results = new_folder(folder, stamp("recover"), DIR)
    try:
        stage = Stage(
            record.plan,
            results.absolute() / "checkpoints",
            steps,
            every,
            "orbax" if plain else "jaxplan",
            devices,
            python,
        )
    except ValueError as error:
        results.rmdir()
        raise InputError(f"--steps {steps} --every {every}: {error}") from error
    return _Drill(stage, results, plan, as_json).run(which)


class _Drill:
    """One run of the command: a line a fault on standard error, the table at the end, everything in the folder."""

    def __init__(self, stage: Stage, results: Path, plan: Path, as_json: bool) -> None:
        self.stage, self.results, self.plan, self.as_json = stage, results, plan, as_json
        self.stderr, self.stdout = console(sys.stderr), console(sys.stdout)
        self.outcomes: list[Outcome] = []
        self.start_s = time.monotonic()

    def run(self, which: list[Any]) -> int:
        try:
            with self.stage:
                self.stage.prepare()
                for line in head_lines(self.facts()):
                    self.stderr.print(line, markup=False)
                for outcome in play(self.stage, which):
                    self.outcomes.append(outcome)
                    self.stderr.print(outcome_line(outcome), markup=False)
                    self.write()
        finally:
            good = passed(self.outcomes)
            if good or not self.outcomes:       # what failed can be looked at
                shutil.rmtree(self.stage.folder, ignore_errors=True)
            if not self.outcomes:
                shutil.rmtree(self.results, ignore_errors=True)
        self.show()
        return 0 if good else FAILED

    def facts(self) -> dict[str, Any]:
        attached, program = self.stage.attached, self.stage.program
        ran = {key: attached[key] for key in ("platform", "device_kind", "devices", "jax")}
        return {
            "plan": str(self.plan),
            "label": self.stage.plan.label,
            "store": self.stage.store,
            "ran_on": {**ran, "label": program["label"], "scaled": program["words"]},
            "steps": self.stage.steps,
            "every": self.stage.every,
            "seconds": time.monotonic() - self.start_s,
        }

    def write(self) -> None:
        path = self.results / "recover.json"
        try:
            write_whole(path, json.dumps(recover_json(self.facts(), self.outcomes), indent=1) + "\n")
        except OSError as error:
            raise unwritable(path, error, DIR) from error

    def show(self) -> None:
        if self.as_json:
            print_json(recover_json(self.facts(), self.outcomes))
            return
        table = grid(self.outcomes).narrowed(self.stdout.width, RULED_GAP)
        self.stdout.print(rich_table(table, not self.stdout.is_terminal))
        for line in last_lines(self.outcomes, time.monotonic() - self.start_s):
            self.stdout.print(line, markup=False)
        kept = "" if passed(self.outcomes) else f"; its checkpoints: {self.stage.folder}"
        self.stdout.print(f"\nAll results: {self.results / 'recover.json'}{kept}", markup=False)
