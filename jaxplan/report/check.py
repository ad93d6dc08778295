"""What `check` found about one plan, as data and as lines. Nothing is computed but differences and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.compile.evidence import Evidence
from jaxplan.plan.record import PlanRecord
from jaxplan.report.text import plan_words
from jaxplan.units import format_bytes, format_seconds

SCHEMA = "jaxplan.check/1"
SHOWN_BUFFERS = 10
MIN_ALIAS = 0.95        # of the state: below it the old and the new state are held together
MIN_HEADROOM = 0.05     # of the memory: below it TPU schedulers stop overlapping


@dataclass(frozen=True)
class Verdict:
    """Whether a plan fits (None: nobody knows), and who says so: a tier, or the plan file's own ledger."""

    fits: bool | None
    source: str


def verdict(record: PlanRecord, found: Sequence[Evidence]) -> Verdict:
    """A refusal of any tier counts; else the target's compiler; else what the plan file recorded, unless edited."""
    refusals = [evidence.tier for evidence in found if evidence.refuses]
    if refusals:
        return Verdict(False, refusals[-1])
    if any(evidence.ok and evidence.tier == "compiled" for evidence in found):
        return Verdict(True, "compiled")
    if record.memory is None or record.stale:
        return Verdict(None, "unknown")
    return Verdict(record.memory.total_bytes <= record.plan.machine.device_hbm_bytes, "recorded")


def check_json(record: PlanRecord, found: Sequence[Evidence]) -> dict[str, Any]:
    """Schema `jaxplan.check/1`. `fits` is null where the plan was not compiled and was edited since it was."""
    said = verdict(record, found)
    return {
        "schema": SCHEMA,
        "plan": {"label": record.plan.label, "fingerprint": record.plan.fingerprint, "stale": record.stale},
        "fits": said.fits,
        "fits_source": said.source,
        "capacity_bytes": record.plan.machine.device_hbm_bytes,
        "calibration": record.plan.machine.calibrated_by,
        "evidence": [evidence.to_json() for evidence in found],
    }


def check_lines(record: PlanRecord, found: Sequence[Evidence]) -> list[str]:
    """The verdict first, then what it rests on."""
    plan = record.plan
    micro = f"{plan.microbatches} microbatch{'es' if plan.microbatches > 1 else ''}"
    lines = [f"{plan.machine.name}: {plan_words(plan)}, {plan.remat} remat, {micro}"]
    if plan.machine.attached is not None:
        lines.append(f"times are {plan.machine.attached.said}")
    if record.stale:
        lines.append("note: the plan was changed after its evidence was gathered; this check is of the plan as it is")
    for evidence in found:
        lines += _tier(evidence, record)
    return lines + _uncompiled(record, found)


def _uncompiled(record: PlanRecord, found: Sequence[Evidence]) -> list[str]:
    """What is known of a plan that the target's compiler did not see here."""
    said = verdict(record, found)
    if said.source == "unknown":
        return ["\nnot compiled here, and changed since its evidence was gathered: nobody knows whether it fits"]
    if said.source != "recorded" or record.memory is None:
        return []
    total, capacity = record.memory.total_bytes, record.plan.machine.device_hbm_bytes
    verb = "fits" if said.fits else "does not fit"
    return [f"\nnot compiled here; as the plan file says, it {verb}: {format_bytes(total)} of {format_bytes(capacity)}"]


def _tier(evidence: Evidence, record: PlanRecord) -> list[str]:
    lines = [f"\n{evidence.tier}  by {evidence.compiler}" if evidence.compiler else f"\n{evidence.tier}"]
    if not evidence.ok:
        lines.append(f"  {evidence.status}: {evidence.message}")
    if evidence.memory is not None:
        lines += _memory(evidence, record)
    if evidence.schedule is not None:
        schedule = evidence.schedule
        lines.append(
            f"  step time {format_seconds(schedule.value_s)} "
            f"({format_seconds(schedule.low_s)} to {format_seconds(schedule.high_s)})"
        )
        lines += [f"    {name:<44} {format_seconds(spent)}" for name, spent in _largest(schedule.ledger)]
    for entry in sorted(evidence.traffic, key=lambda t: -t.nbytes):
        axes = "+".join(entry.axes) or "?"
        size = f"{entry.executions:>7,} x, {format_bytes(entry.nbytes)} a step"
        lines.append(f"  {entry.kind:<20} over {axes:<16} {size}")
    lines += [f"  warning: {warning}" for warning in warnings_of(evidence)]
    lines += [f"  note: {note}" for note in evidence.notes]
    return lines


def _memory(evidence: Evidence, record: PlanRecord) -> list[str]:
    memory = evidence.memory
    assert memory is not None
    lines = []
    if evidence.tier == "compiled":
        total, capacity = memory.total_bytes, evidence.capacity_bytes
        verb = "fits" if total <= capacity else "does not fit"
        share = f"({total / capacity:.0%})"
        lines.append(f"  {verb}: {format_bytes(total)} of {format_bytes(capacity)} a device {share}")
        estimated = record.memory.total_bytes if record.memory else None
        before = dict(record.compared("total_bytes")).get("estimated", estimated)
        if before:
            change = f"({total / before - 1:+.1%})"
            lines.append(f"  estimated {format_bytes(before)}, compiled {format_bytes(total)} {change}")
    lines += [f"    {kind:<44} {format_bytes(nbytes)}" for kind, nbytes in memory.by_kind.items()]
    for buffer in evidence.buffers[:SHOWN_BUFFERS]:
        lines.append(f"      {format_bytes(buffer.nbytes):>9}  {buffer.kind:<10} {buffer.shape:<28} {buffer.name}")
    if evidence.init_memory is not None:
        lines.append(f"  making the initial state needs {format_bytes(evidence.init_memory.total_bytes)}")
    return lines


def warnings_of(evidence: Evidence) -> list[str]:
    """What is suspicious in an accepted program, one sentence each."""
    found = [diagnostic.message for diagnostic in evidence.diagnostics]
    found += [f"sharding not as asked for: {text}" for text in evidence.output_shardings]
    if evidence.donation is not None and evidence.donation.fraction < MIN_ALIAS:
        found.append(f"only {evidence.donation.fraction:.0%} of the state is updated in place")
    if evidence.tier == "compiled" and evidence.ok and evidence.memory is not None:
        headroom = 1 - evidence.memory.total_bytes / evidence.capacity_bytes
        if headroom < MIN_HEADROOM:
            found.append(f"only {headroom:.1%} of the memory is left: schedulers overlap less when memory is tight")
    if evidence.uncovered:
        found.append(f"not counted: {dict(evidence.uncovered)}")
    if evidence.unknown_trip_counts:
        found.append(f"{evidence.unknown_trip_counts} loops of unknown length were counted once: a lower bound")
    return found


def _largest(ledger: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return sorted(ledger, key=lambda entry: -entry[1])
