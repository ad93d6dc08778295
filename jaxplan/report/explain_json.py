"""The JSON of `explain`, schema `jaxplan.explain/1`; its keys do not change. What holds figures says their source."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jaxplan.machine.links import Links
from jaxplan.plan.decisions import shown
from jaxplan.plan.record import MemoryLedger, PlanRecord, TimeLedger
from jaxplan.report.explain import ExplainReport
from jaxplan.report.finite import finite
from jaxplan.search.axis_use import AxisUse, Trade
from jaxplan.search.neighbours import Neighbour

SCHEMA = "jaxplan.explain/1"


def explain_json(report: ExplainReport) -> dict[str, Any]:
    """Schema `jaxplan.explain/1`. `fits` is null where the estimate is too close to the memory to tell."""
    said = report.verdict
    return finite({
        "schema": SCHEMA,
        "plan": _plan(report.record),
        "illegal": report.broken or None,
        "fits": said.fits,
        "fits_source": said.source,
        "step_time_s": _step_time(report),
        "flops": _flops(report),
        "roofline": _roofline(report),
        "axes": [_axis(report, axis) for axis in report.anatomy.axes],
        "host": _host(report),
        "memory_bytes": _memory(report),
        "pipeline": _pipeline(report),
        "bottleneck": {"entry": report.bottleneck[0], "share": report.bottleneck[1], "source": report.time.source},
        "changes": {
            "source": "estimated",
            "best": [_neighbour(report, neighbour) for neighbour in report.best()],
            "by_decision": [_neighbour(report, neighbour) for neighbour in report.worth()],
        },
        "why_not": _why_not(report),
        "calibration": report.plan.machine.calibrated_by,
        "uncovered": dict(report.uncovered),
        "assumptions": list(report.record.assumptions),
    })


def _step_time(report: ExplainReport) -> dict[str, Any]:
    compiled = report.compiled_time
    return {
        "value": report.step_s,
        "source": "compiled" if compiled is not None else "estimated",
        "correction": report.correction.time,
        "by_tier": dict(report.by_tier("step_time_s")),
        "tokens_per_s_per_chip": report.tokens_per_s_per_chip,
        "estimated": _time(report.estimated_time),
        "compiled": _time(compiled) if compiled is not None else None,
    }


def _flops(report: ExplainReport) -> dict[str, Any]:
    found, compiled = report.anatomy, report.compiled
    chip = found.chip
    return {
        "model": found.model_flops,
        "executed": {"value": found.executed_flops, "source": "estimated"},
        "compiled_by_kind_per_device": dict(compiled.flops) if compiled is not None else None,
        "peak_per_device": chip.flops_per_s,
        "mfu": {"value": found.mfu(report.step_s), "source": report.time.source},
    }


def _roofline(report: ExplainReport) -> dict[str, Any]:
    chip = report.anatomy.chip
    lines = [{**asdict(x), "intensity": x.intensity, "bound": x.bound} for x in report.anatomy.rooflines]
    return {"source": "estimated", **asdict(chip), "ridge": chip.ridge, "kinds": lines}


def _axis(report: ExplainReport, axis: AxisUse) -> dict[str, Any]:
    return {
        "axis": axis.name,
        "role": axis.role,
        "size": axis.size,
        "links": _links(axis.links),
        "shards": asdict(axis.shards),
        "estimated": {"seconds": axis.own_s, "collectives": [asdict(moved) for moved in axis.moved]},
        "compiled": [asdict(entry) for entry in report.traffic_of(axis.name)] if report.compiled is not None else None,
        "elsewhere": [_trade(report, trade) for trade in axis.trades],
    }


def _host(report: ExplainReport) -> dict[str, Any] | None:
    """What moves between a device and its host's memory."""
    moved = [asdict(line) for line in report.anatomy.moved if not line.axes]
    rate = report.plan.machine.device_host_bytes_per_s
    return {"source": "estimated", "bytes_per_s": rate, "copies": moved} if moved else None


def _trade(report: ExplainReport, trade: Trade) -> dict[str, Any]:
    return {
        "in_place_of": trade.other,
        "links": _links(trade.links),
        "seconds": trade.own_s,
        "step_time_s": trade.step_s,
        "step_change_s": trade.step_s - report.anatomy.estimate.value_s,
        "source": "estimated",
    }


def _memory(report: ExplainReport) -> dict[str, Any]:
    compiled, known = report.evidence.get("compiled"), report.compiled_memory
    buffers = [asdict(buffer) for buffer in compiled.buffers] if compiled is not None else []
    return {
        "total": report.total_bytes,
        "capacity": report.capacity_bytes,
        "source": "compiled" if compiled is not None and compiled.total_bytes else "estimated",
        "correction": report.correction.memory,
        "by_tier": dict(report.by_tier("total_bytes")),
        "moment": {"at": report.anatomy.estimate.moment, "source": "estimated"},
        "estimated": _bytes(report.estimated_memory),
        "compiled": _bytes(known) if known is not None else None,
        "largest_at_the_peak": {"source": "compiled", "buffers": buffers} if buffers else None,
    }


def _pipeline(report: ExplainReport) -> dict[str, Any] | None:
    if not report.anatomy.orders:
        return None
    plan = report.plan
    counts = {"stages": plan.stages, "microbatches": plan.microbatches, "repeats": plan.repeats}
    return {
        "source": "estimated",
        "schedule": plan.schedule,
        **counts,
        "bubble": 1 - 1 / report.anatomy.bubble,
        "bubble_s": report.anatomy.estimate.time_s.get("pipeline bubble", 0.0),
        "schedules": [asdict(order) for order in report.anatomy.orders],
    }


def _neighbour(report: ExplainReport, neighbour: Neighbour) -> dict[str, Any]:
    mine = report.anatomy.estimate
    return {
        "decision": neighbour.decision,
        "also": list(neighbour.also),
        **shown(neighbour.plan),
        "fits": neighbour.fits,
        "step_time_s": neighbour.value_s,
        "step_change_s": neighbour.value_s - mine.value_s,
        "memory_bytes": neighbour.total_bytes,
        "memory_change_bytes": neighbour.total_bytes - mine.total_bytes,
    }


def _why_not(report: ExplainReport) -> dict[str, Any] | None:
    found = report.why_not
    if found is None:
        return None
    other, its = found.plan, found.estimate
    return {
        "asked": found.asked.text,
        "verdict": found.verdict,
        "reason": found.reason or None,
        "source": "estimated",
        "considered": found.considered,
        "plan": shown(other) if other is not None else None,
        "step_time_s": its.value_s if its is not None else None,
        "step_change_s": found.slower_s if its is not None else None,
        "time_changes_s": dict(found.time_s) if found.time_s is not None else None,
        "memory_bytes": its.total_bytes if its is not None else None,
        "memory_changes_bytes": dict(found.memory_bytes) if found.memory_bytes is not None else None,
        "over_bytes": found.over_bytes,
        "binding_term": found.binding or None,
    }


def _plan(record: PlanRecord) -> dict[str, Any]:
    plan, work = record.plan, record.plan.workload
    return {
        "label": plan.label,
        "fingerprint": plan.fingerprint,
        "stale": record.stale,
        "machine": plan.machine.name,
        "workload": {"name": work.name, "batch": work.batch, "seq": work.seq, "optimizer": work.optimizer},
        "roles": plan.roles,
        **shown(plan),
        "loss_chunks": plan.loss_chunks,
        "attention": plan.attention,
    }


def _time(ledger: TimeLedger) -> dict[str, Any]:
    parts = {part.name: part.amount for part in ledger.parts}
    return {"value": ledger.value_s, "low": ledger.low_s, "high": ledger.high_s, "parts": parts}


def _bytes(ledger: MemoryLedger) -> dict[str, Any]:
    parts = {part.name: {"bytes": part.amount, "source": part.source} for part in ledger.parts}
    return {"total": ledger.total_bytes, "parts": parts}


def _links(links: Links) -> dict[str, Any]:
    return {
        "medium": links.medium,
        "bytes_per_s": links.bytes_per_s,
        "fraction": links.fraction,
        "latency_s": links.latency_s,
        "crosses_network": links.crosses_network,
    }
