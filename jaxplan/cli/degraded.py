"""`jaxplan goodput PLAN --degraded`: plans for what is left of the machine, found, compiled ahead and kept as files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from jaxplan.cli.advice import changes_that_fit
from jaxplan.cli.degraded_search import Running, running_plan, say, search_ways
from jaxplan.cli.degraded_time import strategies
from jaxplan.cli.request import as_it_is_now
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError, JaxplanError
from jaxplan.machine import catalogue
from jaxplan.machine.family import Family
from jaxplan.machine.left import unit_of, without
from jaxplan.plan.record import PlanRecord
from jaxplan.report.degraded import Case, DegradedReport
from jaxplan.report.degraded_text import lost_words
from jaxplan.report.goodput import GoodputReport
from jaxplan.search.degraded import ways

LOST = "1,2"
AHEAD = (
    "A plan that was compiled ahead is known to compile and to fit, and `jaxplan check` answers it from jaxplan's "
    "cache. Its executable lies in no cache of the job's: give the job a jax_compilation_cache_dir that all hosts see, "
    "and run a step of each plan once on that many hosts; a start without that compiles first."
)
NO_COMPILER = "The target's compiler is not installed here: times and memory are estimates."
LONG_RUN = (
    "Nodes in repair follow Erlang's distribution, the mean being failures times repair, whatever the repairs' own "
    "(Erlang 1917; without an end it is Poisson's, Palm's theorem). The job stops where more are missing than it has "
    "plans for."
)
OF_UNIT = {
    "host": (),
    "slice": (
        "A node that fails takes its whole slice out, and two failed nodes are counted as two slices, which is the "
        "worse case. Spares are whole slices.",
    ),
    "size": (
        "A slice that loses a host is no slice any more: what is left is taken to be the smaller slices that the same "
        "box can be cut down to, one step down for each failed node, which is the worse case. Spares are whole slices.",
    ),
}


def parse_lost(text: str) -> tuple[int, ...]:
    """`1,2` as (1, 2): in order, each once.

    Raises:
        InputError: not whole numbers of at least 1, joined by commas.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", word) and int(word) >= 1 for word in words):
        raise InputError(f"--lost {text!r}", "whole numbers of at least 1, joined by commas", f"--lost {LOST}")
    return tuple(sorted({int(word) for word in words}))


def degraded_report(
    record: PlanRecord, path: Path, goodput: GoodputReport, lost: tuple[int, ...], compile_ahead: bool
) -> DegradedReport:
    """The plans of all cases; each is written beside `path` as it is found. Ctrl-C ends it with what there is by then.

    Args:
        path: of the running plan's `goodput.json`.
        goodput: of the running plan.
        lost: units, ascending.

    Raises:
        InputError: the workload cannot be traced, or the folder cannot be written.
    """
    record, question = as_it_is_now(record), goodput.assessment.question
    unit, cases, stopped = unit_of(record.plan.machine), [], ""
    with Tiers(record.plan.machine, 1) as tiers:
        running = running_plan(record, path, tiers, compile_ahead)
        notes = [AHEAD if running.compiled is not None else NO_COMPILER] if compile_ahead else []
        try:
            for case in _cases(running, lost, tiers, compile_ahead):
                cases.append(case)
        except KeyboardInterrupt:
            stopped = "interrupted"
    return DegradedReport(
        plan=record.plan,
        unit=unit,
        step_s=question.step_s if question.step_s is not None else running.estimated_s,
        step_source=goodput.step_source or "estimated",
        swap=running.compiled,
        cases=tuple(cases),
        strategies=strategies(record.plan, cases, question),
        notes=(*notes, *OF_UNIT[unit.word], LONG_RUN),
        stopped=stopped,
    )


def _cases(running: Running, lost: tuple[int, ...], tiers: Tiers, compile_ahead: bool) -> Iterator[Case]:
    """One case for each number of lost units."""
    machine, family, workload = running.plan.machine, _family(running), running.plan.workload
    for count in lost:
        left = without(machine, count, family)
        if left is None:
            yield Case(count, None, why_not=f"{lost_words(unit_of(machine), count)}, and nothing is left")
            continue
        say(f"{lost_words(unit_of(machine), count)}: {left.name}")
        found = tuple(
            search_ways(running, tuple(alike), _file(running.path, count, kind), tiers, compile_ahead)
            for kind, alike in groupby(ways(workload, running.table, left, family), lambda way: way.kind)
        )
        said = " ".join(left.notes)
        if any(taken.row is not None for taken in found):
            yield Case(count, left, found, why_not=said)
            continue
        say("nothing fits: looking for the smallest change that would")
        changes = changes_that_fit(replace(workload, defaults=()), left, tiers.trace)
        yield Case(count, left, found, tuple(changes), f"{said} No way to go on fits.".strip())


def _file(path: Path, lost: int, kind: str) -> str:
    """`degraded-1-exact.json` beside `goodput.json`, `degraded-2-1-exact.json` beside `goodput-2.json`."""
    return f"degraded{path.stem.removeprefix('goodput')}-{lost}-{kind}.json"


def _family(running: Running) -> Family | None:
    """What the machine was made from; None where that was a file of the user's."""
    try:
        return catalogue.family(running.plan.machine.family)
    except JaxplanError:
        return None
