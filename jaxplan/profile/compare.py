"""Where a prediction missed: every line of the ledger as estimated, as compiled and as measured.

The rows' differences add up to the whole gap, measured less predicted; the prediction is the compiler's where there is
one, else the estimate's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxplan.plan.record import PlanRecord
from jaxplan.profile.figures import CollectiveTime, Measured
from jaxplan.profile.findings import RULES
from jaxplan.profile.findings.finding import Finding
from jaxplan.profile.predicted import RECOMPUTE, Predicted, Traffic, in_order, predictions

SCHEMA = "jaxplan.compare/1"
MOST_FINDINGS = 5
MOST_OPERATIONS = 30


@dataclass(frozen=True)
class Row:
    """One line of the ledger: seconds as each tier says; None where a tier says nothing at all."""

    name: str
    estimated_s: float | None = None
    compiled_s: float | None = None
    measured_s: float | None = None

    def predicted_s(self, tier: str) -> float | None:
        return {"estimated": self.estimated_s, "compiled": self.compiled_s}.get(tier)


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind along the same axes, as each tier sees them."""

    kind: str
    axes: tuple[str, ...]
    estimated: Traffic | None
    compiled: Traffic | None
    measured: CollectiveTime | None

    def predicted(self, tier: str) -> Traffic | None:
        return {"estimated": self.estimated, "compiled": self.compiled}.get(tier)


@dataclass(frozen=True)
class Comparison:
    """A profile beside what was predicted of it.

    Attributes:
        record: the plan; None where a profile is looked at alone.
        predicted: by tier, the best known last; empty without a plan.
        rows: the ledger, the largest measured first; each column adds up to its tier's step time.
        elsewhere: why predicted times are not of what ran (another machine); empty where they are.
        expected_s: a step time that the caller expected, from elsewhere; used where no tier predicts.
    """

    measured: Measured
    record: PlanRecord | None
    predicted: tuple[Predicted, ...]
    rows: tuple[Row, ...]
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...]
    elsewhere: str = ""
    expected_s: float | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        total = sum(self.difference_s(row) for row in self.rows)
        if self.predicted and abs(total - (self.gap_s or 0.0)) > 1e-6 * self.measured.step_s:
            raise ValueError(f"the rows must add up to the gap: got {total}, expected {self.gap_s}")

    @property
    def tier(self) -> str:
        """Whose prediction is compared; empty without one."""
        return self.predicted[-1].tier if self.predicted else ""

    @property
    def predicted_s(self) -> float | None:
        """The step time that was predicted, or expected by the caller."""
        return self.predicted[-1].step_s if self.predicted else self.expected_s

    @property
    def gap_s(self) -> float | None:
        """Measured less predicted."""
        return None if self.predicted_s is None else self.measured.step_s - self.predicted_s

    def difference_s(self, row: Row) -> float:
        """What a row adds to the gap."""
        return (row.measured_s or 0.0) - (row.predicted_s(self.tier) or 0.0)

    def to_json(self) -> dict[str, Any]:
        """Schema `jaxplan.compare/1`."""
        steps = {one.tier: one.step_s for one in self.predicted}
        measured, trace = self.measured, self.measured.trace
        return {
            "schema": SCHEMA,
            "profile": {
                "files": [str(path) for path in trace.paths],
                "platform": measured.platform,
                "hosts": list(trace.hosts),
                "devices": len(trace.devices),
                "program": measured.program,
                "steps": len(measured.steps),
                "steps_from": trace.steps_from,
                "versions": dict(trace.versions),
            },
            "plan": None if self.record is None else self.record.plan.label,
            "mesh": dict(measured.axes),
            "predicted_by": self.tier or None,
            "elsewhere": self.elsewhere or None,
            "step_time_s": {
                "estimated": steps.get("estimated"),
                "compiled": steps.get("compiled"),
                "expected": self.expected_s,
                "measured": measured.step_s,
                "gap": self.gap_s,
                "all": list(measured.steps),
            },
            "ledger": [
                {**vars(row), "difference_s": self.difference_s(row) if self.predicted else None} for row in self.rows
            ],
            "collectives": [_collective_json(one) for one in self.collectives],
            "operations": measured.to_json()["operations"][:MOST_OPERATIONS],
            "devices": measured.to_json()["devices"],
            "attributed": measured.attributed_s / measured.total_s if measured.total_s else None,
            "unknown": measured.unknown,
            "findings": [vars(finding) for finding in self.findings],
            "notes": list(self.notes),
        }


def _collective_json(one: Collective) -> dict[str, Any]:
    def told(traffic: Traffic | None) -> dict[str, Any] | None:
        return None if traffic is None else {"bytes": traffic.nbytes, "seconds": traffic.seconds}

    measured = one.measured
    return {
        "kind": one.kind,
        "axes": list(one.axes),
        "estimated": told(one.estimated),
        "compiled": told(one.compiled),
        "measured": None
        if measured is None
        else {
            "bytes": measured.nbytes,
            "seconds": measured.seconds,
            "exposed_s": measured.exposed_s,
            "executions": measured.executions,
        },
    }


def compare(
    measured: Measured,
    record: PlanRecord | None = None,
    predicted: tuple[Predicted, ...] | None = None,
    expected_s: float | None = None,
) -> Comparison:
    """A profile beside its plan's predictions.

    Args:
        record: the plan that ran; its evidence predicts, unless `predicted` is given.
        predicted: of a run that is not the plan's own size, what was predicted for it; the best known last.
        expected_s: a step time to compare with where nothing else predicts.
    """
    known = predicted if predicted is not None else () if record is None else predictions(record)
    notes = list(measured.notes)
    if record is not None and record.stale and predicted is None:
        notes.append("the plan was changed after its evidence was gathered: nothing predicts it as it is")
    elsewhere = "" if record is None else _elsewhere(measured, record, predicted is None)
    if elsewhere:
        notes.append(elsewhere)
    bare = Comparison(
        measured=measured,
        record=record,
        predicted=known,
        rows=_rows(measured, known, notes),
        collectives=_collectives(measured, known),
        notes=tuple(notes),
        elsewhere=elsewhere,
        expected_s=None if known else expected_s,
    )
    found = [finding for rule in RULES for finding in rule(bare)]
    return replace(bare, findings=tuple(sorted(found, key=lambda one: -one.seconds)[:MOST_FINDINGS]))


def _elsewhere(measured: Measured, record: PlanRecord, of_the_plan: bool) -> str:
    """Why a plan's times are not of what ran: another kind of machine, or (where they are the plan's) another mesh."""
    machine = record.plan.machine
    if machine.kind != measured.platform:
        devices = f"the profile is of {measured.platform} devices"
        return f"the plan is for {machine.name}, {devices}: predicted times are another machine's"
    own, ran = (
        {name: size for name, size in sizes.items() if size > 1} for sizes in (record.plan.sizes, measured.axes)
    )
    if not of_the_plan or not ran or own == ran:
        return ""
    meshes = (",".join(f"{name}={size}" for name, size in sizes.items()) for sizes in (own, ran))
    return "the plan's mesh is {}, the program ran on {}: predicted times are another mesh's".format(*meshes)


def _rows(measured: Measured, predicted: tuple[Predicted, ...], notes: list[str]) -> tuple[Row, ...]:
    """Every name that anybody uses, one row each."""
    columns: dict[str, Mapping[str, float]] = {one.tier: one.ledger for one in predicted}
    spent = {entry.name: entry.seconds for entry in measured.ledger}
    if RECOMPUTE in columns.get("estimated", {}):
        if "compiled" in columns:
            notes.append("recompute: the compiler and the trace count it under matmul and the other kinds")
        elif measured.recompute:
            for entry in measured.recompute:
                spent[entry.name] -= entry.seconds
            spent[RECOMPUTE] = sum(entry.seconds for entry in measured.recompute)
    columns["measured"] = spent
    names = dict.fromkeys(name for ledger in (spent, *columns.values()) for name in ledger)
    rows = [
        Row(name, **{f"{tier}_s": ledger.get(name, 0.0) for tier, ledger in columns.items()})
        for name in sorted(names, key=lambda name: -spent.get(name, 0.0))
    ]
    return tuple(row for row in rows if any((row.estimated_s, row.compiled_s, row.measured_s)))


def _collectives(measured: Measured, predicted: tuple[Predicted, ...]) -> tuple[Collective, ...]:
    mesh = tuple(measured.axes)
    columns: dict[str, dict[tuple[str, tuple[str, ...]], Any]] = {"estimated": {}, "compiled": {}}
    for tier in predicted:
        columns[tier.tier] = {(one.kind, in_order(one.axes, mesh)): one for one in tier.collectives}
    own = {(one.kind, in_order(one.axes, mesh)): one for one in measured.collectives}
    keys = dict.fromkeys([*own, *columns["compiled"], *columns["estimated"]])
    return tuple(
        Collective(*key, columns["estimated"].get(key), columns["compiled"].get(key), own.get(key)) for key in keys
    )
