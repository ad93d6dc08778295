"""The search of ways to go on without a part of the machine: the usual one, with the best plan compiled and kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxplan.cli.console import console
from jaxplan.cli.recording import record_of
from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError
from jaxplan.estimate.single import estimate_plan
from jaxplan.plan.files import write
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import PlanRecord
from jaxplan.report.degraded import Taken
from jaxplan.report.search import Row, SearchReport, search_report
from jaxplan.report.text import no_fit, proof_words
from jaxplan.report.words import decision_words
from jaxplan.search.degraded import Way, candidates, relative_throughput, same_state
from jaxplan.search.progress import Progress
from jaxplan.search.prove import Limits, prove
from jaxplan.search.rank import rank
from jaxplan.units import format_seconds
from jaxplan.workload.table import Table

COMPILES = 3        # chosen: plans that may be refused before a way is given up


@dataclass(frozen=True)
class Running:
    """The plan that runs while nothing is missing, and what is known of it.

    Attributes:
        path: of its `goodput.json`; plans that are found are written beside it.
        table: of its workload.
        estimated_s: its step time by the formulas of today.
        compiled: what the target's compiler says of it; None where it was not asked.
    """

    record: PlanRecord
    path: Path
    table: Table
    estimated_s: float
    compiled: Evidence | None

    @property
    def plan(self) -> Plan:
        return self.record.plan


def running_plan(record: PlanRecord, path: Path, tiers: Tiers, compile_ahead: bool) -> Running:
    """Traces, estimates and, if asked to, compiles the running plan."""
    table = tiers.trace(record.plan.workload)
    found = None
    if compile_ahead:
        for note in tiers.notes:
            say(f"Note      {note}")
        future = tiers.compile(record.plan)
        found = future.result() if future is not None else None
    if found is not None:
        say(f"compile   the running plan, {decision_words(record.plan)}: {_said(found)}")
    return Running(record, path, table, estimate_plan(record.plan, table).value_s, found)


@dataclass(frozen=True)
class _Search:
    """What the estimates say of one way."""

    way: Way
    table: Table
    progress: Progress

    @property
    def rows_per_s(self) -> float:
        """Of its best plan; 0 where nothing fits."""
        order = self.progress.order()
        return self.way.rows / self.progress.time_s(order[0]) if order else 0.0


def search_ways(running: Running, ways: Sequence[Way], name: str, tiers: Tiers, compile_ahead: bool) -> Taken:
    """The best plan of ways of one kind, by the estimates the fastest of them; written as `name` beside `running.path`.

    Raises:
        InputError: the file cannot be written.
    """
    searches, why_not = [], ""
    for way in ways:
        try:
            searches.append(_search(running, way, tiers))
        except InputError as error:
            why_not = str(error)
    if not searches:
        return Taken(ways[0], why_not=why_not)
    best = max(searches, key=lambda search: search.rows_per_s)
    if compile_ahead and best.rows_per_s:
        prove(best.progress, tiers, Limits(top=1, partitions=0, compiles=COMPILES, jobs=1), _say_proof)
    report = search_report(best.progress, best.table, best.way.workload, {}, 1)
    if not report.rows:
        return Taken(best.way, why_not=no_fit(report)[0])
    return _taken(running, best, report, running.path.parent / name)


def _search(running: Running, way: Way, tiers: Tiers) -> _Search:
    plan, table = running.plan, tiers.trace(way.workload)
    ranking = rank(candidates(way, table, plan), table, way.machine)

    def plan_of(row: int) -> Plan:
        return ranking.space.plan(row, way.machine, way.workload, plan.attention, plan.compiler_flags)

    return _Search(way, table, Progress(ranking, plan_of))


def _taken(running: Running, search: _Search, report: SearchReport, path: Path) -> Taken:
    # what compiled goes before what is only expected to be faster: it must work when it is needed
    compiled = search.progress.compiled()
    row = next((row for row in report.rows if row.candidate in compiled[:1]), report.rows[0])
    before = running.record
    after = record_of(report, row, search.progress, search.table)
    ratio, source = _relative(running, search.way, row)
    return Taken(
        way=search.way,
        row=row,
        relative=ratio,
        relative_source=source,
        compiled=search.progress.proofs.get(row.candidate, {}).get("compile"),
        path=str(write(after, path)),
        same_state=same_state((*before.parameters, *before.optimizer), (*after.parameters, *after.optimizer)),
    )


def _relative(running: Running, way: Way, row: Row) -> tuple[float, str]:
    """(throughput over the running plan's, the source of both times): what a source gets wrong of both cancels."""
    batch, compiled = running.plan.workload.batch, running.compiled
    if compiled is not None and compiled.step_time_s and row.step_time_s["source"] == "compiled":
        before, now, source = compiled.step_time_s, row.step_time_s["value"], "compiled"
    else:
        before, now, source = running.estimated_s, row.step_time_s["estimated"], "estimated"
    return relative_throughput(batch, before, way.rows, now), source


def _say_proof(tier: str, row: int, progress: Progress) -> None:
    proof = progress.proofs[row][tier]
    say(f"{tier:<9} {decision_words(progress.plan_of(row))}: {_said(proof)}")


def _said(proof: Evidence) -> str:
    result = "ok" if proof.ok else f"{proof.status}: {proof.message}"
    took = "known before" if proof.from_cache else format_seconds(proof.seconds)
    return f"{result}{proof_words(proof)} ({took})"


def say(line: str) -> None:
    """Progress, on standard error."""
    console(sys.stderr).print(line, markup=False)
