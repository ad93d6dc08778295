"""A plan in a few lines of text. No JAX here."""

from __future__ import annotations

from jaxplan.plan.record import PlanRecord
from jaxplan.units import format_bytes, format_seconds


def summary(record: PlanRecord) -> str:
    """What the plan decides, what it costs, and how that is known; one fact a line."""
    plan = record.plan
    work = plan.workload
    mesh = " ".join(f"{name}={size}" for name, size in plan.sizes.items())
    lines = [
        f"Plan {plan.fingerprint}{' (changed since its evidence was gathered)' if record.stale else ''}",
        f"Machine  {plan.machine.describe()}",
        f"Work     {work.name}, {work.batch:,} x {work.seq:,} tokens, {work.optimizer}, {work.parameter_dtype} parameters, "
        f"{work.compute_dtype} compute",
        f"Mesh     {mesh}{', ZeRO-1' if plan.zero1 else ''}{', sequence sharding' if plan.sequence_sharding else ''}",
        *[f"         {axis}: {links}" for axis, links in record.placement.items()],
        f"Step     remat {plan.remat}, {plan.microbatches} microbatches, {plan.loss_chunks} loss chunks, "
        f"{plan.attention} attention",
    ]
    lines += [f"         {flag}={value}" for flag, value in plan.compiler_flags.items()]
    return "\n".join([*lines, *_costs(record)])


def _costs(record: PlanRecord) -> list[str]:
    lines = []
    if record.memory is not None:
        ledger = record.memory
        total, capacity = format_bytes(ledger.total_bytes), format_bytes(ledger.capacity_bytes)
        verdict = "fits" if ledger.fits else "does not fit"
        lines.append(f"Memory   {total} of {capacity} a device, {verdict} ({ledger.source})")
        lines += (
            [_compared(record, "total_bytes", format_bytes)]
            if len(record.compared("total_bytes")) > 1
            else []
        )
    if record.time is not None:
        ledger = record.time
        low, value, high = (format_seconds(s) for s in (ledger.low_s, ledger.value_s, ledger.high_s))
        lines.append(f"Time     {value} a step, {low} to {high} ({ledger.source})")
        lines += (
            [_compared(record, "step_time_s", format_seconds)]
            if len(record.compared("step_time_s")) > 1
            else []
        )
    if record.search is not None:
        lines.append(f"Search   {record.search.candidates:,} plans, {record.search.feasible:,} fit")
    return lines


def _compared(record: PlanRecord, figure: str, text) -> str:
    return "         " + ", ".join(f"{tier} {text(value)}" for tier, value in record.compared(figure))
