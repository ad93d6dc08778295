"""A plan in a few lines of text. No JAX here."""

from __future__ import annotations

from collections.abc import Callable

from jaxplan.plan.record import PlanRecord
from jaxplan.units import format_bytes, format_seconds


def summary(record: PlanRecord) -> str:
    """What the plan decides, what it costs, and how that is known; one fact a line."""
    plan = record.plan
    work = plan.workload
    mesh = " ".join(f"{name}={size}" for name, size in plan.sizes.items())
    options = ["ZeRO-2" if plan.zero2 else "ZeRO-1"] * plan.zero1 + ["sequence sharding"] * plan.sequence_sharding
    options += [f"{plan.context_attention} attention"] * (plan.size("context") > 1)
    options += [f"{plan.schedule} of {plan.repeats} repeats"] * (plan.stages > 1)
    options += ["optimizer in host memory"] * plan.offload_optimizer
    dtypes = f"{work.parameter_dtype} parameters, {work.compute_dtype} compute"
    lines = [
        f"Plan {plan.fingerprint}{' (changed since its evidence was gathered)' if record.stale else ''}",
        f"Machine  {plan.machine.describe()}",
        f"Work     {work.name}, {work.batch:,} x {work.seq:,} tokens, {work.optimizer}, {dtypes}",
        f"Mesh     {', '.join([mesh, *options])}",
        *[f"         {axis}: {links}" for axis, links in record.placement.items()],
        f"Step     remat {plan.remat}, microbatches {plan.microbatches}, loss chunks {plan.loss_chunks}, "
        f"{plan.attention} attention",
        *[f"         {flag}={value}" for flag, value in plan.compiler_flags.items()],
    ]
    return "\n".join([*lines, *_costs(record)])


def _costs(record: PlanRecord) -> list[str]:
    lines = []
    if record.memory is not None:
        ledger = record.memory
        total, capacity = format_bytes(ledger.total_bytes), format_bytes(ledger.capacity_bytes)
        verdict = "fits" if ledger.fits else "does not fit"
        lines.append(f"Memory   {total} of {capacity} a device, {verdict} ({ledger.source})")
        lines += _compared(record, "total_bytes", format_bytes)
    if record.time is not None:
        low, value, high = (
            format_seconds(s) for s in (record.time.low_s, record.time.value_s, record.time.high_s)
        )
        lines.append(f"Time     {value} a step, {low} to {high} ({record.time.source})")
        lines += _compared(record, "step_time_s", format_seconds)
    if record.search is not None:
        lines.append(f"Search   {record.search.candidates:,} plans, {record.search.feasible:,} fit")
    return lines


def _compared(record: PlanRecord, figure: str, text: Callable[[float], str]) -> list[str]:
    """What each tier said, where several did: `estimated 3.10 s, compiled 3.40 s`."""
    found = record.compared(figure)
    shown = ", ".join(f"{tier} {text(value)}" for tier, value in found)
    return [f"         {shown}"] if len(found) > 1 else []
