"""From the plans of each case to the long run of a job that waits, and of jobs that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from jaxplan.goodput.assessment import Question
from jaxplan.goodput.degraded import level_of, over_time, planned_restart_s, undominated
from jaxplan.goodput.spares import in_repair, needed
from jaxplan.machine.left import unit_of
from jaxplan.plan.plan import Plan
from jaxplan.report.degraded import FASTEST, KEEP, WAIT, Case, Strategy, Taken

KEPT = ("exact", "idle")        # ways that ask nothing of the optimizer or of the loss


def strategies(plan: Plan, cases: Sequence[Case], question: Question) -> tuple[Strategy, ...]:
    """Waiting, going on with the batch as it is, going on the fastest way; without spares, and with the question's.

    Args:
        question: what `goodput` was asked; its nodes are taken to be the plan's hosts.
    """
    hosts, unit = plan.machine.hosts, unit_of(plan.machine)
    asked = replace(question, failures=replace(question.failures, nodes=hosts), work=None)
    enough = needed(asked.spares_probability, in_repair(asked.failures.per_day, asked.repair_s))
    nodes = asked.spare_nodes if asked.spare_nodes is not None else enough
    full = level_of(asked, 0, hosts, 1.0)
    kept = _plans(cases, lambda taken: taken.way.kind in KEPT)
    fastest = _plans(cases, lambda taken: True)
    courses = [(WAIT, []), (KEEP, kept), (FASTEST, fastest if fastest != kept else [])]
    found = []
    for spares in sorted({0, nodes // unit.hosts}):
        for name, plans in courses:
            if plans or name == WAIT:
                levels = [level_of(asked, lost, one.way.machine.hosts, one.relative) for lost, one in plans]
                restart = planned_restart_s(asked)
                found.append(Strategy(name, over_time(undominated([full, *levels]), spares, asked.repair_s, restart)))
    return tuple(found)


def _plans(cases: Iterable[Case], wanted: Callable[[Taken], bool]) -> list[tuple[int, Taken]]:
    """(units lost, the fastest of the wanted ways) of every case that has one."""
    found = []
    for case in cases:
        ways = [taken for taken in case.ways if taken.row is not None and taken.same_state and wanted(taken)]
        if ways:
            found.append((case.lost, max(ways, key=lambda taken: taken.relative)))
    return found
