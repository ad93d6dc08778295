"""What a compiled program's text says, as evidence. No JAX here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jaxplan.compile.collectives import Collective, collectives
from jaxplan.compile.evidence import Evidence, Schedule, Traffic
from jaxplan.compile.hlo import parse
from jaxplan.compile.hlo_cost import flops
from jaxplan.compile.timeline import Entry, StepTime, timeline
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import Placement
from jaxplan.plan.plan import Plan


def read(about: Evidence, text: str, plan: Plan, placement: Placement) -> Evidence:
    """`about` with what the HLO text of the compiled step says: FLOPs, collectives, schedule.

    A schedule is the target compiler's; the host's says nothing about the target's time.

    Raises:
        HloError: the text is not understood (an unknown spelling of replica groups, say).
    """
    module = parse(text)
    count = flops(module)
    found = collectives(module, plan.sizes)
    return replace(
        about,
        flops=dict(count.by_kind),
        uncovered=dict(count.uncovered),
        unknown_trip_counts=count.unknown_trip_counts,
        traffic=traffic(found, placement),
        schedule=_schedule(timeline(module, plan.machine, placement)) if about.tier == "compiled" else None,
    )


def _schedule(time: StepTime) -> Schedule:
    def pairs(entries: Iterable[Entry]) -> tuple[tuple[str, float], ...]:
        return tuple((entry.name, entry.seconds) for entry in entries)

    return Schedule(time.value_s, time.low_s, time.high_s, pairs(time.ledger), pairs(time.communication))


def traffic(found: Iterable[Collective], placement: Placement) -> tuple[Traffic, ...]:
    """Collectives summed by (kind, axes), as the target would see them, with their time on the links."""
    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for one in found:
        groups.setdefault((one.target_kind, one.axes), []).append(one)
    rows = []
    for (kind, axes), members in groups.items():
        links = placement.links(axes)
        spent = sum(float(seconds(kind, one.target_nbytes, links)) * one.executions for one in members)
        moved = sum(float(one.target_nbytes) * one.executions for one in members)
        times = sum(one.executions for one in members)
        rows.append(Traffic(kind, axes, len(members), times, moved, spent))
    return tuple(sorted(rows, key=lambda row: -row.nbytes))


def refusal(about: Evidence, error: Exception) -> Evidence | None:
    return None


def diagnostics(stderr: str) -> tuple:
    return ()


def peak_buffers(folder: str) -> tuple:
    return ()
