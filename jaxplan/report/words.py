"""Figures and plans in the few words that several reports use. Nothing is computed here."""

from __future__ import annotations

from jaxplan.plan.plan import Plan
from jaxplan.report.text import plan_words
from jaxplan.units import format_bytes, format_seconds, significant

FLOP_UNITS = (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6))


def decision_words(plan: Plan) -> str:
    """`fsdp=32 tensor=4, mlp remat, 4 microbatches`."""
    return f"{plan_words(plan)}, {plan.remat} remat, {count_words(plan.microbatches, 'microbatch', 'es')}"


def count_words(count: int, what: str, plural: str = "s") -> str:
    """`1 device`, `16,384 devices`."""
    return f"{count:,} {what}{plural if count != 1 else ''}"


def seconds_change(value: float) -> str:
    return sign(value) + format_seconds(abs(value))


def bytes_change(value: float) -> str:
    return sign(value) + format_bytes(abs(value))


def sign(value: float) -> str:
    return "+" if value >= 0 else "-"


def flops_words(flops: float) -> str:
    """FLOPs in the largest unit that leaves at least 1 (`216 PFLOP`)."""
    for unit, size in FLOP_UNITS:
        if flops >= size:
            return f"{significant(flops / size)} {unit}"
    return f"{flops:,.0f} FLOP"
