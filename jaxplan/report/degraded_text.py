"""Degraded plans for a terminal or a pipe: for each machine that may be left the ways to go on, and their worth."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.compile.evidence import Evidence
from jaxplan.machine.left import Unit
from jaxplan.report.columns import INDENT, columns, paragraph
from jaxplan.report.degraded import (
    SAME_PROGRAM,
    Case,
    DegradedReport,
    Taken,
    data_words,
    optimizer_words,
    state_words,
)
from jaxplan.report.words import count_words, decision_words
from jaxplan.search.batches import LINEAR_RULE, SQUARE_ROOT_RULE
from jaxplan.units import format_bytes, format_seconds

KINDS = {
    "exact": "the batch, on every chip",
    "idle": "the batch, on fewer chips",
    "padded": "the batch, and rows of padding",
    "nearest": "the nearest batch",
    "whole": "a batch of whole rows a device",
}


def degraded_lines(report: DegradedReport, width: int) -> Iterator[str]:
    """Everything, in the order in which it is read."""
    plan = report.plan
    yield "\nWhen nodes are missing"
    yield from paragraph(
        f"now: {plan.machine.name}, {decision_words(plan)}, batch {plan.workload.batch:,}, "
        f"{format_seconds(report.step_s)} a step ({report.step_source})", width, INDENT
    )
    swap = f"spares in their place: the same plan, {_compile(report.swap)}; {SAME_PROGRAM}"
    yield from paragraph(swap, width, INDENT)
    for case in report.cases:
        yield from _case(report, case, width)
    yield from _over_time(report, width)
    yield ""
    for note in (*_for_all(report), *report.notes):
        yield from paragraph(note, width, INDENT)
    if report.stopped:
        yield from paragraph(f"Not everything was searched: {report.stopped}.", width, INDENT)


def lost_words(unit: Unit, lost: int) -> str:
    """`1 host fewer`; of a single slice `1 size smaller`."""
    if unit.word == "size":
        return f"{count_words(lost, 'size')} smaller"
    return f"{count_words(lost, unit.word)} fewer"


def _case(report: DegradedReport, case: Case, width: int) -> Iterator[str]:
    left = f"{case.left.name}, {count_words(case.left.chips, 'chip')}" if case.left is not None else "nothing"
    yield f"\n{lost_words(report.unit, case.lost)}: {left}"
    if case.why_not:
        yield from paragraph(case.why_not, width, INDENT)
    found = [taken for taken in case.ways if taken.row is not None]
    if found:
        rows = [("", "rows a step", "plan", "step time", "tokens/s", "memory/device", "compiler")]
        yield from columns(rows + [_row(taken) for taken in found], width, right=(1, 3, 4, 5))
    for taken in case.ways:
        yield from _changes(report, taken, width)
    if case.changes:
        changes = "; ".join(f"{change.words}: {change.flags}" for change in case.changes)
        other = any("--optimizer" in change.flags or "--seq" in change.flags for change in case.changes)
        said = ". Another optimizer or length is another training, which cannot go on from this one" if other else ""
        yield from paragraph(f"What would fit: {changes}{said}.", width, INDENT)


def _row(taken: Taken) -> tuple[str, ...]:
    row, way = taken.row, taken.way
    assert row is not None
    padding = f" + {way.padding:,}" if way.padding else ""
    idle = f"{way.machine.name}, {count_words(way.idle_chips, 'chip')} idle: " if way.idle_chips else ""
    return (
        way.kind,
        f"{way.rows:,}{padding}",
        f"{idle}{decision_words(row.plan)}",
        f"{format_seconds(row.step_time_s['value'])} ({row.step_time_s['source']})",
        f"{taken.relative:.1%}",
        f"{format_bytes(row.memory_bytes['total'])} of {format_bytes(row.memory_bytes['capacity'])}",
        _compile(taken.compiled),
    )


def _compile(evidence: Evidence | None) -> str:
    if evidence is None:
        return "not asked"
    if not evidence.ok:
        return f"{evidence.status}: {evidence.message}"
    took = format_seconds(evidence.seconds)
    return f"compiled before, {took}" if evidence.from_cache else f"compiled now, {took}"


def _changes(report: DegradedReport, taken: Taken, width: int) -> Iterator[str]:
    plan, way = report.plan, taken.way
    said = f"{way.kind}, {KINDS[way.kind]}: "
    if taken.row is None:
        yield from paragraph(f"{said}no plan. {taken.why_not}", width, INDENT)
        return
    other = [] if taken.same_state else [state_words(taken)]
    said += "; ".join([optimizer_words(plan, way), data_words(plan, way), *other])
    yield from paragraph(f"{said}.", width, INDENT)
    if taken.path:
        yield f"{INDENT * 2}{taken.path}"


def _for_all(report: DegradedReport) -> Iterator[str]:
    """What is said once of all ways."""
    ways = [taken for case in report.cases for taken in case.ways if taken.row is not None]
    same = [taken for taken in ways if taken.same_state]
    if same:
        yield f"{'All' if len(same) == len(ways) else 'The other'} plans: {state_words(same[0])}."
    if ways:
        yield (
            "All plans: data must be dealt out sample by sample, so that any number of readers goes on at the same "
            "place (order `global` of jaxplan.checkpoint); a reader with files of its own cannot."
        )
        sources = sorted({taken.relative_source for taken in ways})
        yield f"Column tokens/s: over the running plan's, from {' or '.join(sources)} times of both."
    if any(taken.way.rows != report.plan.workload.batch for taken in ways):
        yield f"Linear rule: {LINEAR_RULE}. Square-root rule: {SQUARE_ROOT_RULE}."


def _over_time(report: DegradedReport, width: int) -> Iterator[str]:
    if not report.strategies:
        return
    lost = [level.lost for level in max((s.over_time.levels for s in report.strategies), key=len)]
    word = "slices" if report.unit.word != "host" else "hosts"
    yield "\nIn the long run (useful work over the full plan's without any failure; share of the time by units missing)"
    heads = ["full plan" if n == 0 else f"up to {n} missing" for n in lost]
    rows = [(f"spare {word}", "strategy", "useful work", *heads, "stopped", "planned restarts")]
    for strategy in report.strategies:
        found = strategy.over_time
        shares = {level.lost: share for level, share in zip(found.levels, found.shares, strict=False)}
        cells = [f"{shares[n]:.2%}" if n in shares else "" for n in lost]
        ends = f"{found.shares[-1]:.2%}", f"{found.returns:.2%}"
        rows.append((f"{found.spares}", strategy.name, f"{found.throughput:.2%}", *cells, *ends))
    yield from columns(rows, width, right=(0, *range(2, len(rows[0]))))
