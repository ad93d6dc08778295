"""The estimate of one plan as plain values: ledgers that add up to their totals, and the bottleneck in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.estimate.memory import PARTS
from jaxplan.estimate.step import Estimates
from jaxplan.plan.sharding import AXES


@dataclass(frozen=True)
class Estimate:
    """What the formulas say of one plan.

    Attributes:
        memory_bytes: by part (`estimate.memory.PARTS`); adds up to `total_bytes`.
        moment: the moment of the step at which memory is largest.
        time_s: by what the device spends it on; adds up to `value_s`.
        communication_s: by (kind, axes), hidden or not.
        collective_bytes: by (kind, axes), on each device and step.
    """

    memory_bytes: dict[str, float]
    moment: str
    time_s: dict[str, float]
    low_s: float
    value_s: float
    high_s: float
    flops: float
    communication_s: dict[tuple[str, tuple[str, ...]], float]
    collective_bytes: dict[tuple[str, tuple[str, ...]], float]

    @property
    def total_bytes(self) -> float:
        return sum(self.memory_bytes.values())

    def evidence(self) -> dict[str, Any]:
        """What a plan's file keeps of it (`PlanRecord.evidence`)."""
        return {
            "total_bytes": self.total_bytes,
            "memory_bytes": dict(self.memory_bytes),
            "moment": self.moment,
            "step_time_s": {"value": self.value_s, "low": self.low_s, "high": self.high_s},
            "time_s": dict(self.time_s),
            "flops": self.flops,
            "collectives": [
                {"kind": kind, "axes": list(axes), "bytes": nbytes, "seconds": self.communication_s[kind, axes]}
                for (kind, axes), nbytes in self.collective_bytes.items()
            ],
        }

    @property
    def bottleneck(self) -> str:
        """The largest entry of the time ledger."""
        return max(self.time_s, key=lambda name: self.time_s[name])


def estimate_of(estimates: Estimates, row: int, sizes: Sequence[int], bubble: float = 1.0) -> Estimate:
    """One row of many estimates.

    Args:
        sizes: of the plan's axes, in the order of `AXES`: collectives are named by those that move something.
        bubble: time of the plan's pipeline over the time of its work.
    """
    large = {axis for axis, size in zip(AXES, sizes, strict=True) if size > 1}
    times: dict[str, float] = defaultdict(float)
    for i, entry in enumerate(estimates.works):
        spent = float(estimates.compute_s[row, i])
        idle = spent * (1 - 1 / bubble) if entry.in_layers else 0.0
        times["recompute" if entry.recomputed else entry.kind] += spent - idle
        times["pipeline bubble"] += idle
    communication: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    nbytes: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    state: dict[str, float] = defaultdict(float)
    for i, entry in enumerate(estimates.collectives):
        spent, moved = float(estimates.collective_s[row, i]), float(estimates.collective_bytes[row, i])
        if not moved:
            continue
        axes = tuple(axis for axis in entry.axes if axis in large)
        communication[entry.kind, axes] += spent
        nbytes[entry.kind, axes] += moved
        name = " ".join(["exposed", *(["+".join(axes)] if axes else []), entry.kind])
        if entry.prefetchable:
            state[name] += spent
        else:
            times[name] += spent
    busy, hideable = float(estimates.busy_s[row]), sum(state.values())
    exposed = float(estimates.waited_s(hideable, busy))
    for name, spent in state.items():
        times[name] += exposed * spent / hideable if hideable else 0.0
    return Estimate(
        memory_bytes=dict(zip(PARTS, map(float, estimates.memory_bytes[row]), strict=True)),
        moment=estimates.moments[int(estimates.moment[row])],
        time_s={name: spent for name, spent in times.items() if spent > 0},
        low_s=float(estimates.low_s[row]),
        value_s=float(estimates.value_s[row]),
        high_s=float(estimates.high_s[row]),
        flops=float(estimates.flops[row].sum()),
        communication_s=dict(communication),
        collective_bytes=dict(nbytes),
    )
