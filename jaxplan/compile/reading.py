"""What a compiled program's text says, as evidence. No JAX here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from jaxplan.compile import diagnostics
from jaxplan.compile.buffers import read_peak
from jaxplan.compile.collectives import Collective, collectives
from jaxplan.compile.events import Node
from jaxplan.compile.evidence import Buffer, Diagnostic, Evidence, Schedule, Traffic
from jaxplan.compile.hlo import parse
from jaxplan.compile.hlo_cost import flops
from jaxplan.compile.megascale import Slices
from jaxplan.compile.timeline import LIKE, Entry, StepTime, timeline
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import Placement
from jaxplan.plan.plan import Plan

COMPILER_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
NAMED_BUFFERS = 24      # the largest ones: a 70B model has some thousand alive at its peak


def read(about: Evidence, text: str, plan: Plan, placement: Placement) -> tuple[Evidence, Node | None]:
    """`about` with what the HLO text of the compiled step says: FLOPs, collectives, schedule; and the step itself.

    A schedule is the target compiler's; the host's says nothing about the target's time.

    Raises:
        HloError: the text is not understood (an unknown spelling of replica groups, say).
    """
    module = parse(text)
    count = flops(module)
    found = collectives(module, plan.sizes, slices=Slices.of(placement))
    time = timeline(module, plan.machine, placement) if about.tier == "compiled" else None
    evidence = replace(
        about,
        flops=dict(count.by_kind),
        uncovered=dict(count.uncovered),
        unknown_trip_counts=count.unknown_trip_counts,
        traffic=traffic(found, placement, as_is=plan.machine.kind == "cpu"),
        schedule=_schedule(time) if time is not None else None,
    )
    return evidence, time.step if time is not None else None


def _schedule(time: StepTime) -> Schedule:
    def pairs(entries: Iterable[Entry]) -> tuple[tuple[str, float], ...]:
        return tuple((entry.name, entry.seconds) for entry in entries)

    return Schedule(time.value_s, time.low_s, time.high_s, pairs(time.ledger), pairs(time.communication))


def traffic(found: Iterable[Collective], placement: Placement, as_is: bool = False) -> tuple[Traffic, ...]:
    """Collectives summed by (kind, axes), as the target would see them, with their time on the links.

    Args:
        as_is: the host is the target: nothing is seen otherwise than it stands in the program.
    """

    def nbytes(one: Collective) -> float:
        return float(one.nbytes if as_is else one.target_nbytes)

    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for one in found:
        groups.setdefault((one.kind if as_is else one.target_kind, one.axes), []).append(one)
    rows = []
    for (kind, axes), members in groups.items():
        priced = LIKE.get(kind, kind)
        spent = sum(
            float(seconds(priced, nbytes(one), placement.links(axes, one.part))) * one.executions
            for one in members
        )
        moved = sum(nbytes(one) * one.executions for one in members)
        times = sum(one.executions for one in members)
        rows.append(Traffic(kind, axes, len(members), times, moved, spent))
    return tuple(sorted(rows, key=lambda row: -row.nbytes))


def refusal(about: Evidence, error: Exception) -> Evidence | None:
    """The evidence that a compiler's exception amounts to; None where it is not a compiler's."""
    if type(error).__name__ not in COMPILER_ERRORS:
        return None
    finding = diagnostics.refusal(str(error))
    if finding.kind == diagnostics.OUT_OF_MEMORY:
        return replace(about, status="does not fit", message=finding.message, needed_bytes=finding.nbytes)
    return replace(about, status="failed", message=finding.message, diagnostics=(_diagnostic(finding),))


def warnings(stderr: str) -> tuple[Diagnostic, ...]:
    """What a compile complained of on descriptor 2."""
    return tuple(_diagnostic(finding) for finding in diagnostics.warnings(stderr))


def _diagnostic(finding: diagnostics.Finding) -> Diagnostic:
    return Diagnostic(finding.kind, finding.message, finding.operation, finding.nbytes, finding.source)


def largest_dump(folder: Path) -> Path | None:
    """The step's program in a folder that XLA dumped to: helpers are dumped as well."""
    return max(folder.glob("*after_optimizations.hlo.pb"), key=lambda file: file.stat().st_size, default=None)


def peak(folder: str) -> tuple[tuple[Buffer, ...], int | None]:
    """The largest buffers alive at the peak and the bytes of all allocations, from a dump."""
    dump = largest_dump(Path(folder))
    if dump is None:
        return (), None
    found = read_peak(dump.read_bytes())
    named = found.buffers[:NAMED_BUFFERS]
    return tuple(Buffer(b.op_name or b.name, b.shape, b.nbytes, b.kind) for b in named), found.total_bytes
