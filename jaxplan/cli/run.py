"""`jaxplan run PLAN`: a plan run for a few steps on what is attached: measured beside compiled beside estimated."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxplan.cli.calibrated import HELP, remarks
from jaxplan.cli.console import console, print_json
from jaxplan.cli.request import as_it_is_now
from jaxplan.cli.stamped import new_folder, stamp, unwritable
from jaxplan.compile.reading import COMPILER_ERRORS
from jaxplan.errors import InputError, JaxplanError, MissingError
from jaxplan.machine.attached import load
from jaxplan.plan.files import read, write_whole
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import PlanRecord
from jaxplan.profile.compare import compare as beside
from jaxplan.profile.measured import measure
from jaxplan.profile.measured_timeline import timeline
from jaxplan.profile.program import text_beside
from jaxplan.profile.trace import read as read_trace
from jaxplan.report.run_text import run_lines
from jaxplan.run.job import Request
from jaxplan.run.process import RunProcess
from jaxplan.run.processes import detected, explicit, started_by, unreached
from jaxplan.run.result import FAR_BEHIND, Event, RunResult
from jaxplan.run.tokens import open_tokens
from jaxplan.units import format_seconds

LOGDIR = "--logdir FOLDER"
AGAINST = 1
INTERRUPTED = 130
TELL_EVERY_S = 5.0
FATAL = re.compile(r"^F\d{4} .*?\] (.*)$", re.MULTILINE)      # how Abseil logs a fatal error
UNPREDICTED = (
    "Nothing predicts this run: it is not on the plan's own machine, and no calibration of this one was given "
    "(--calibration NAME, of `jaxplan calibrate`)."
)
PHASES = {"warmup": "warm up", "plain": "time", "profiled": "profile"}


def run(
    plan: Annotated[Path, typer.Argument(help="a plan.json")],
    steps: Annotated[int, typer.Option(help="steps to time, beside up to 5 that are profiled")] = 20,
    warmup: Annotated[int, typer.Option(help="steps before them")] = 3,
    logdir: Annotated[Path, typer.Option(help="folder for the results")] = Path("jaxplan-runs"),
    data: Annotated[Path | None, typer.Option(help="token ids, .npy or .npz (default: made up)")] = None,
    parity: Annotated[bool, typer.Option(help="compare a small step with one device")] = True,
    devices: Annotated[
        int | None, typer.Option(help="virtual CPU devices, not what is attached (8 where nothing is)")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help=HELP)] = None,
    coordinator: Annotated[str | None, typer.Option(help="HOST:PORT of process 0, where there are several")] = None,
    processes: Annotated[int | None, typer.Option(help="how many there are")] = None,
    process: Annotated[int | None, typer.Option(help="the number of this one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Run a plan for a few profiled steps on what is attached; a plan for more devices is scaled down."""
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value < least:
            raise InputError(f"--{name} {value}", f"at least {least}")
    asked = explicit(coordinator, processes, process)
    record = as_it_is_now(read(plan))
    if data is not None:
        open_tokens(data)
    known = None if calibration is None else load(calibration)
    if devices is None and asked is None and record.plan.machine.kind == "cpu":
        devices = record.plan.machine.devices       # a plan for virtual devices says how many
    request = Request(
        plan=str(plan),
        decisions=record.plan.decisions(),
        steps=steps,
        warmup=warmup,
        data="" if data is None else str(data),
        parity=parity,
        calibration=None if known is None else known.to_json(),
        explicit=None if asked is None else asked.to_json(),
        detected="" if asked is not None else detected(os.environ),
    )
    result = RunResult(plan, record, steps, warmup)
    if known is not None:
        result.calibration, result.notes = known.name, remarks(known)
    return Runner(result, request, devices, logdir, as_json).run()


class Runner:
    """One run of the command: progress on standard error, the result on standard output and in the run's folder."""

    def __init__(
        self, result: RunResult, request: Request, devices: int | None, logdir: Path, as_json: bool
    ) -> None:
        self.result, self.request, self.devices = result, request, devices
        self.logdir, self.as_json = logdir, as_json
        self.stderr, self.stdout = console(sys.stderr), console(sys.stdout)
        self.ended, self.told = "", ("", 0.0)
        self.unwritten: InputError | None = None

    def run(self) -> int:
        interrupted = False
        with RunProcess(self.request, self.devices) as process:
            try:
                for event in process.events():
                    self.result.take(event)
                    self.tell(event)
                    if event["event"] == "attached":
                        process.give_folder(self.folder())
            except KeyboardInterrupt:
                interrupted = True
                self.result.interrupted = "Interrupted: what was measured until then is kept."
            ending = process.ending
        if ending.problem:
            self.result.interrupted = f"The run did not end: {ending.problem}."
            self.ended = f"{ending.problem}{_last(ending.stderr)}"
        if self.result.silent or self.refused():
            return self.code(interrupted)
        self.profile()
        self.write()
        self.show()
        return self.code(interrupted)

    def refused(self) -> bool:
        """Whether bad input ended the run before its first step: then there is no folder, either."""
        bad = self.result.events.get("failed", {}).get("kind") in ERRORS and not self.result.taken
        if bad and self.result.folder is not None:
            shutil.rmtree(self.result.folder, ignore_errors=True)
        return bad

    def folder(self) -> str:
        """The run's folder, made; nothing where another process makes it."""
        if self.result.silent:
            return ""
        self.result.folder = new_folder(self.logdir, stamp("run"), LOGDIR)
        return str(self.result.folder.absolute())

    def tell(self, event: Event) -> None:
        """A line on standard error for what takes time; other processes than the first are silent."""
        if self.result.silent:
            return
        kind = event["event"]
        if kind == "attached":
            several = f", {event['processes']} processes" if event["processes"] > 1 else ""
            assumed = event["platform"] == "cpu" and self.devices is None
            virtual = "  (no accelerator was found: virtual devices; --devices)" if assumed else ""
            self.say(f"attached   {event['devices']} x {event['device_kind']} ({event['platform']}){several}{virtual}")
        elif kind == "plan":
            for words in event["words"]:
                self.say(f"scaled     {words}")
        elif kind == "compiled":
            self.say(f"compile    {format_seconds(event['seconds'])}, initial state {format_seconds(event['init_s'])}")
        elif kind == "step":
            self.tell_step(event)

    def tell_step(self, event: Event) -> None:
        """The first step of each phase, and then one every few seconds."""
        now, phase = time.monotonic(), event["phase"]
        if phase == self.told[0] and now - self.told[1] < TELL_EVERY_S and event["loss"] is not None:
            return
        self.told = phase, now
        loss = "not finite" if event["loss"] is None else f"{event['loss']:.4f}"
        self.say(f"{PHASES[phase]:<10} step {event['number']:<4} {format_seconds(event['seconds']):>9}   loss {loss}")

    def profile(self) -> None:
        """What the profile holds: the measured ledger beside what was predicted, who is behind, the timeline."""
        result, path = self.result, self.result.profile_path
        if path is None or result.folder is None:
            return
        plan = result.plan
        try:
            trace = read_trace(path.parent)
            module = text_beside(result.folder, trace.programs[trace.main].name)
            measured = measure(trace, module, plan.sizes)
        except JaxplanError as error:
            result.notes.append(f"the profile says nothing: {error}")
            return
        found = beside(measured, self.predicting(plan, result.folder))
        far = FAR_BEHIND * measured.step_s
        result.ledger = [(entry.name, entry.seconds) for entry in measured.ledger]
        result.stragglers = [(i, one.behind_s) for i, one in enumerate(measured.devices) if one.behind_s > far]
        result.compared = [(row.name, row.estimated_s, row.compiled_s, row.measured_s) for row in found.rows]
        result.findings = [vars(finding) for finding in found.findings]
        result.notes += found.notes
        self._save("timeline.json", timeline(measured))

    def predicting(self, plan: Plan, folder: Path) -> PlanRecord | None:
        """Whose evidence predicts the run: the asked plan's where that is what ran, else that of a calibration."""
        if plan == self.result.record.plan:
            return self.result.record
        if self.result.calibration is None:
            self.result.notes.append(UNPREDICTED)
            return None
        record = read(folder / "plan.json")
        return record if record.evidence else None

    def write(self) -> None:
        self._save("run.json", self.result.to_json())

    def _save(self, name: str, document: Any) -> None:
        """Writes one document of the run's folder; what cannot be written does not stop the others."""
        folder = self.result.folder
        if folder is None:
            return
        try:
            write_whole(folder / name, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            self.unwritten = unwritable(folder / name, error, LOGDIR)
            self.say(f"note: {self.unwritten}")

    def show(self) -> None:
        document = self.result.to_json()
        if self.as_json:
            print_json(document)
            return
        for line in run_lines(document):
            self.stdout.print(line, markup=False)
        if self.result.folder is not None and self.result.taken:
            self.stdout.print(f"\nAll results: {self.result.folder}      look:  tensorboard --logdir {self.logdir}")

    def code(self, interrupted: bool) -> int:
        """The exit code; what ended the run is raised, so that it is said last.

        Raises:
            JaxplanError: bad input, something missing, a run that ended before it was done.
        """
        failed = self.result.events.get("failed")
        if interrupted:
            return INTERRUPTED
        if failed is not None and failed["kind"] != "VerdictError":
            raise self.error(failed)
        if self.ended and "attached" not in self.result.events and (self.request.explicit or self.request.detected):
            raise unreached(started_by(self.request.explicit, self.request.detected), self.ended)
        if self.ended:
            raise RunError(self.ended + self.peers())
        if self.result.against:
            return AGAINST
        if self.unwritten is not None:
            raise self.unwritten
        return 0

    def error(self, failed: Event) -> Exception:
        """What a run's process raised, as it is told here; its own traceback goes along."""
        found: Exception
        if failed["kind"] in ERRORS:
            found = ERRORS[failed["kind"]].__new__(ERRORS[failed["kind"]])
            Exception.__init__(found, failed["message"])
        elif failed["message"].startswith(COMPILER_ERRORS):
            found = RunError(f"the run failed: {failed['message']}{self.peers()}")
        else:
            found = RuntimeError(failed["message"])
        if failed["traceback"]:
            found.add_note(failed["traceback"])
        return found

    def peers(self) -> str:
        """What may be behind the end of one of several processes."""
        count = self.result.events.get("attached", {}).get("processes", 1)
        return f". It is one of {count} processes: another one may be gone, or out of reach" if count > 1 else ""

    def say(self, line: str) -> None:
        self.stderr.print(line, markup=False)


class RunError(JaxplanError):
    """A run whose process ended before it was done."""

    exit_code = 1


ERRORS = {kind.__name__: kind for kind in (InputError, MissingError)}


def _last(stderr: str) -> str:
    """What a process wrote before it died: why a C++ library ended it, else its last line."""
    lines = [match[1] for match in FATAL.finditer(stderr)] or [line for line in stderr.splitlines() if line.strip()]
    return f" (last words: {lines[-1].strip()[:400]})" if lines else ""
