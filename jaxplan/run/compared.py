"""Estimated, compiled and measured seconds of a step side by side, by ledger name. No JAX here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxplan.machine.collectives import KINDS
from jaxplan.plan.record import PlanRecord

Row = tuple[str, float | None, float | None, float | None]
STEP = "step"


def compared(
    estimated: Mapping[str, float] | None,
    compiled: Mapping[str, float] | None,
    measured: Sequence[tuple[str, float]] | None,
    step_s: float | None = None,
) -> list[Row]:
    """A row for each name that any of them has, the longest first, and one for the whole step.

    A name that a ledger lacks costs it nothing: 0 where there is a ledger, None where there is none. The rows of each
    column add up to its step, but for what was measured: its ledger is of profiled steps, its step of those without.

    Args:
        step_s: the median of the steps without profiler.
    """
    columns = [None if one is None else merged(one) for one in (estimated, compiled, dict(measured) if measured else None)]
    names = {name: None for column in columns for name in column or ()}
    rows: list[Row] = []
    for name in names:
        a, b, c = (None if column is None else column.get(name, 0.0) for column in columns)
        rows.append((name, a, b, c))
    rows.sort(key=lambda row: -max(value or 0.0 for value in row[1:]))
    a, b, c = (None if column is None else sum(column.values()) for column in columns)
    return [*rows, (STEP, a, b, step_s if step_s is not None else c)] if names or step_s is not None else []


def merged(ledger: Mapping[str, float]) -> dict[str, float]:
    """A ledger with one entry for all that is exposed of an axis: estimates tell its kinds of collectives apart."""
    found: dict[str, float] = {}
    for name, seconds in ledger.items():
        words = name.split()
        if words[:1] == ["exposed"] and words[-1] in KINDS:
            name = " ".join(words[:-1])
        found[name] = found.get(name, 0.0) + seconds
    return found


def evidence_of(record: PlanRecord) -> tuple[Mapping[str, float] | None, Mapping[str, float] | None]:
    """The ledgers of what was estimated and of what was compiled, as the plan's file has them; None where it has not."""
    if record.stale:
        return None, None
    estimated = record.evidence.get("estimated", {}).get("time_s")
    schedule = record.evidence.get("compiled", {}).get("schedule") or {}
    ledger = schedule.get("ledger")
    return (dict(estimated) if estimated else None), (dict(map(tuple, ledger)) if ledger else None)
