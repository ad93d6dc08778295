"""`jaxplan search`: the main job. Only wiring and printing; the work is in search/, compile/ and report/."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jaxplan.cli.advice import changes_that_fit
from jaxplan.cli.calibrated import HELP, machine_of
from jaxplan.cli.choice import choose
from jaxplan.cli.console import console, print_json
from jaxplan.cli.folder import RunFolder
from jaxplan.cli.goodput_flags import Flags
from jaxplan.cli.recording import record_of
from jaxplan.cli.request import attention_kernel, attention_note, workload_of
from jaxplan.cli.views import write_candidates, write_views
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError
from jaxplan.machine.topology import Machine
from jaxplan.report import text
from jaxplan.report.search import SearchReport, search_report
from jaxplan.search.dims import roles_of_dims
from jaxplan.search.progress import Progress
from jaxplan.search.prove import Limits, prove
from jaxplan.search.rank import rank
from jaxplan.search.space import enumerate_space
from jaxplan.search.why import Change
from jaxplan.units import format_seconds
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

NO_FIT = 1
INTERRUPTED = 130       # 128 + SIGINT, as shells report it


def search(
    mesh: Annotated[
        str, typer.Option(help="physical shape: a TPU slice (8x16), slices (2x(8x16)), HOSTSxCHIPS for GPUs (16x8)")
    ],
    chip: Annotated[str | None, typer.Option(help="v5e, h100, ...; see `jaxplan catalog chips`")] = None,
    machine: Annotated[str | None, typer.Option(help="machine family or a TOML file of yours")] = None,
    slices: Annotated[int | None, typer.Option(help="how many slices of --mesh, joined by data-centre network")] = None,
    model: Annotated[str | None, typer.Option(help="a model of the catalogue, or a TOML file of yours")] = None,
    hf: Annotated[Path | None, typer.Option(help="a Hugging Face config.json")] = None,
    program: Annotated[
        str | None, typer.Option("--workload", help="a program of yours: file.py:name, a function of (batch, seq)")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="sequences per optimizer step, over all devices")] = None,
    seq: Annotated[int | None, typer.Option(help="tokens per sequence")] = None,
    optimizer: Annotated[str, typer.Option(help="an optax optimizer")] = "adamw",
    precision: Annotated[str, typer.Option(help="bf16 (float32 master), bf16-pure, f32, fp8 (priced)")] = "bf16",
    dispatch: Annotated[str | None, typer.Option(help="tokens to experts: capacity (default) or dropless")] = None,
    capacity_factor: Annotated[float | None, typer.Option(help="an expert's room over its even share")] = None,
    hot_expert: Annotated[float | None, typer.Option(help="the busiest device's tokens over the even share")] = None,
    calibration: Annotated[str | None, typer.Option(help=HELP)] = None,
    objective: Annotated[str, typer.Option(help="time (fastest first) or memory (smallest first)")] = "time",
    top: Annotated[int, typer.Option(help="how many plans the target's compiler must prove")] = 3,
    partitions: Annotated[int, typer.Option(help="how many plans the host's partitioner checks first")] = 12,
    compiles: Annotated[int | None, typer.Option(help="the most compiles to try (default: three times --top)")] = None,
    jobs: Annotated[int, typer.Option(help="compiles at a time")] = 2,
    tokens: Annotated[
        str | None, typer.Option(help="to train on (15T): compare sizes of the machine by days and money")
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="with --tokens: 30d")] = None,
    price: Annotated[
        float | None, typer.Option("--price-per-chip-hour", "--price", help="with --tokens: in any currency")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="with --tokens: the most money that it may cost")] = None,
    out: Annotated[Path, typer.Option(help="folder for the results")] = Path("jaxplan-runs"),
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Search every layout, have the best ones compiled by the machine's own compiler, write the best as plan.json."""
    if objective not in ("time", "memory"):
        raise InputError(f"--objective {objective}", "time or memory")
    compiles = 3 * top if compiles is None else compiles
    counts = {"top": (top, 1), "jobs": (jobs, 1), "partitions": (partitions, 0), "compiles": (compiles, 0)}
    for name, (value, least) in counts.items():
        if value < least:
            raise InputError(f"--{name} {value}", f"at least {least}")
    target = machine_of(mesh, chip, machine, slices, calibration)
    experts = {"dispatch": dispatch, "capacity_factor": capacity_factor, "hot_expert_factor": hot_expert}
    workload = workload_of(target, model, hf, program, batch, seq, optimizer, experts, precision)
    if tokens is not None:
        return choose(workload, target, Flags(tokens=tokens, price=price), deadline, budget, out, as_json)
    if deadline is not None or price is not None or budget is not None:
        raise InputError("--deadline, --price-per-chip-hour or --budget without --tokens", "--tokens as well")
    limits = Limits(top, partitions, compiles, jobs)
    job = Search(target, workload, objective, limits, out, as_json)
    return job.run()


class Search:
    """One run of the command: its progress on standard error, its result on standard output and in its folder."""

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        objective: str,
        limits: Limits,
        out: Path,
        as_json: bool,
    ) -> None:
        self.machine, self.workload, self.objective = machine, workload, objective
        self.limits = limits
        self.as_json = as_json
        self.stderr, self.stdout = console(sys.stderr), console(sys.stdout)
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.folder = RunFolder(out)
        self.table: Table
        self.progress: Progress
        self.changes: tuple[Change, ...] = ()
        self.unwritten: InputError | None = None
        self.noted: set[str] = set()

    def run(self) -> int:
        for line in text.header(self.machine, self.workload, None):
            self.say(line)
        if note := attention_note(self.machine, self.workload):
            self.say(f"Note      {note}")
        try:
            with Tiers(self.machine, self.limits.jobs) as tiers:
                self.estimate(tiers)
                if self.progress.order():
                    self.prove(tiers)
                if not self.progress.order():
                    self.say("nothing fits: looking for the smallest change that would")
                    self.changes = tuple(changes_that_fit(self.workload, self.machine, tiers.trace))
                for note in tiers.cache.warnings:
                    self.note(note)
        except KeyboardInterrupt:
            if not hasattr(self, "progress"):
                raise
            self.progress.stopped = "interrupted"
            self.write()
            self.show_candidates()
            self.say(f"What is known so far is in {self.folder.path}")
            return INTERRUPTED
        return self.finish()

    def estimate(self, tiers: Tiers) -> None:
        """Trace, enumerate, price; the first table."""
        traced = self.timed("trace", lambda: tiers.trace(self.workload))
        self.table = traced

        def price() -> Progress:
            space = enumerate_space(self.workload, self.table, self.machine)
            return Progress(rank(space, self.table, self.machine), self.plan_of, objective=self.objective)

        self.progress = self.timed("estimate", price)
        ranking = self.progress.ranking
        counts = f"{len(ranking.space):,} plans, {int(ranking.fits.sum()):,} fit"
        self.say(f"estimate   {counts:<40} {format_seconds(self.seconds['estimate'])}")
        if self.table.uncovered:
            self.say(f"uncovered  not priced: {dict(self.table.uncovered)}")
        if self.workload.model is None:
            for line in roles_of_dims(self.table):
                self.say(f"Dims      {line}")
        self.write()
        if self.progress.order():
            self.stderr.print(self.grid(self.report().rows, self.stderr))
        self.show_candidates()

    def prove(self, tiers: Tiers) -> None:
        """Partition and compile, a line for each proof; the folder always holds what is known."""
        for note in tiers.notes:
            self.note(note)

        def on_proof(tier: str, row: int, progress: Progress) -> None:
            proof = progress.proofs[row][tier]
            self.seconds[tier] = self.seconds.get(tier, 0.0) + (0.0 if proof.from_cache else proof.seconds)
            result = "ok" if proof.ok else f"{proof.status}: {proof.message}"
            took = "known before" if proof.from_cache else format_seconds(proof.seconds)
            plan = progress.plan_of(row)
            name = f"{text.plan_words(plan)}, {plan.remat} remat, {plan.microbatches} micro"
            self.say(f"{tier:<10} {name:<46} {result}{text.proof_words(proof)}  ({took})")
            self.write()

        prove(self.progress, tiers, self.limits, on_proof)

    def finish(self) -> int:
        self.seconds["total"] = time.perf_counter() - self.started
        report = self.write()
        self.show_candidates()
        self.show_plans(report)
        if self.as_json:
            print_json(report.to_json(self.folder.shown(report)))
        else:
            self.show(report)
        if self.unwritten is not None:
            raise self.unwritten
        return 0 if report.rows else NO_FIT

    def show(self, report: SearchReport) -> None:
        """The final table, what it means, and what to do next."""
        if not report.rows:
            for line in text.no_fit(report):
                self.stdout.print(line, markup=False)
            return
        self.stdout.print(self.grid(report.rows, self.stdout))
        why = [*text.comparison(report), *text.why_lines(report)] if self.objective == "time" else []
        for line in [*why, *text.rejected_lines(report)]:
            self.stdout.print(line, markup=False)
        self.stdout.print(f"Stopped because {report.stopped}.", markup=False)
        if self.unwritten is not None:
            return
        best, every = self.folder.path / "plan.json", self.folder.path / "search.json"
        again = f"jaxplan check {shlex.quote(str(best))}"
        self.stdout.print(f'\nPlan written to {best}      use it:  plan = jaxplan.load("{best}")', markup=False)
        self.stdout.print(f"All results: {every}      again, alone:  {again}", markup=False)
        look = f"tensorboard --logdir {shlex.quote(str(self.folder.parent))}"
        self.stdout.print(f"Look at all plans, and at one step:  {look}  (tab Plan)", markup=False)

    def write(self) -> SearchReport:
        """Everything known so far, whole, in the run's folder; once it has been written, a full disk stops nothing.

        Raises:
            InputError: the folder cannot be made or written at all.
        """
        report = self.report()
        try:
            self.folder.write(report, self.progress, self.table)
            self.unwritten = None
        except InputError as error:
            if not self.folder.made:
                raise
            self.unwritten = error
            self.note(str(error))
        return report

    def show_candidates(self) -> None:
        """Every plan that fits, for TensorBoard; without it the search is as good."""
        with self.optional():
            write_candidates(self.folder.path, self.progress, self.table, self.folder.plans)

    def show_plans(self, report: SearchReport) -> None:
        """The explanation, the step and the program of the plans that were asked for or compiled, for TensorBoard."""
        for number, row in enumerate(report.rows, 1):
            compiled = self.progress.proofs.get(row.candidate, {}).get("compile")
            if self.unwritten or (compiled is None and number > self.limits.top):
                continue
            with self.optional():
                record = record_of(report, row, self.progress, self.table)
                write_views(Path(self.folder.plans[row.candidate]), number, record, self.table, compiled)

    @contextlib.contextmanager
    def optional(self) -> Iterator[None]:
        """What cannot be written is a note."""
        try:
            yield
        except InputError as error:
            self.note(str(error))

    def report(self) -> SearchReport:
        return search_report(self.progress, self.table, self.workload, self.seconds, self.limits.top, self.changes)

    def plan_of(self, row: int):
        space = self.progress.ranking.space
        flags = self.machine.compiler_flags
        return space.plan(row, self.machine, self.workload, attention_kernel(self.machine, self.workload), flags)

    def grid(self, rows, console: Console):
        return text.plans_grid(rows, not console.is_terminal, console.width)

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - began
        return result

    def note(self, words: str) -> None:
        """Says something once."""
        if words not in self.noted:
            self.noted.add(words)
            self.say(f"Note      {words}")

    def say(self, line: str) -> None:
        self.stderr.print(line, markup=False)
