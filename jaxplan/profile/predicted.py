"""What a plan's evidence predicted of a step, under the names of the measured ledger.

The estimate tells collectives of one set of axes apart by kind, the measured ledger does not; the compiler's schedule
enters what collectives slow compute by on a line of its own, a device's clock cannot tell it from compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxplan.plan.record import PlanRecord

SLOWED, LOOKUP, MEMORY_BOUND, RECOMPUTE = "slowed by collectives", "lookup", "memory-bound", "recompute"
COMPUTE = ("matmul", "attention", "kernel", MEMORY_BOUND)
NOT_AXES = ("exposed copies", "exposed host transfers")
AGAINST = ("estimated", "compiled")     # the tiers that predict time, the better one last


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind along the same axes in one step of one device, as a tier sees them."""

    kind: str
    axes: tuple[str, ...]
    nbytes: float
    seconds: float | None


@dataclass(frozen=True)
class Predicted:
    """What one tier said of a step: a ledger in seconds, its total, its collectives."""

    tier: str
    ledger: Mapping[str, float]
    collectives: tuple[Traffic, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def step_s(self) -> float:
        return sum(self.ledger.values())


def predictions(record: PlanRecord) -> tuple[Predicted, ...]:
    """What the tiers said of a plan, the best known last; nothing where the plan was changed since."""
    if record.stale:
        return ()
    axes = tuple(record.plan.sizes)
    found = []
    estimated = record.evidence.get("estimated")
    if isinstance(estimated, Mapping) and estimated.get("time_s"):
        collectives = tuple(_traffic(row, "bytes", axes) for row in estimated.get("collectives", ()))
        found.append(Predicted("estimated", under_measured_names(estimated["time_s"], axes), collectives))
    compiled = record.evidence.get("compiled")
    schedule = compiled.get("schedule") if isinstance(compiled, Mapping) else None
    if isinstance(compiled, Mapping) and isinstance(schedule, Mapping) and schedule.get("ledger"):
        ledger = under_measured_names(dict(map(tuple, schedule["ledger"])), axes)
        collectives = tuple(_traffic(row, "nbytes", axes) for row in compiled.get("traffic", ()))
        found.append(Predicted("compiled", ledger, collectives))
    return tuple(found)


def _traffic(row: Mapping[str, Any], nbytes: str, axes: Sequence[str]) -> Traffic:
    spent = row.get("seconds")
    return Traffic(
        row["kind"], in_order(row["axes"], axes), float(row[nbytes]), None if spent is None else float(spent)
    )


def under_measured_names(ledger: Mapping[str, float], axes: Sequence[str]) -> dict[str, float]:
    """A predicted ledger under the names that a measured one has; its sum stays."""
    out: dict[str, float] = {}
    for name, seconds in ledger.items():
        to = MEMORY_BOUND if name == LOOKUP else _exposed(name, axes)
        out[to] = out.get(to, 0.0) + float(seconds)
    slowed = out.pop(SLOWED, 0.0)
    computing = {name: out[name] for name in COMPUTE if out.get(name)}
    if slowed and not computing:
        out[MEMORY_BOUND] = slowed
    for name, seconds in computing.items():
        out[name] += slowed * seconds / sum(computing.values())
    return out


def _exposed(name: str, axes: Sequence[str]) -> str:
    """`exposed fsdp` of `exposed fsdp all-gather`, axes in the mesh's order; other names as they are."""
    words = name.split()
    if name in NOT_AXES or words[:1] != ["exposed"] or len(words) < 2:
        return name
    named = words[1].split("+")
    if not set(named) <= set(axes):
        return name
    return f"exposed {'+'.join(in_order(named, axes))}"


def in_order(named: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Some axes in the order of the mesh; unknown ones last."""
    return tuple(sorted(named, key=lambda axis: axes.index(axis) if axis in axes else len(axes)))
