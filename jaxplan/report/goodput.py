"""The report of `goodput` and its JSON, schema `jaxplan.goodput/1`; its keys do not change. Nothing is computed here.

The document (`goodput.json`, beside `plan.json`; `goodput-2.json` beside `plan-2.json`):

    schema              "jaxplan.goodput/1"
    plan, label         the plan's path and decisions; null and a name where everything was given by hand
    inputs              [{"name", "value", "unit", "source"}]: every figure that went in, and where it comes from
    nodes, chips        of the job
    mtbf_s              mean time between failures of the whole job
    failures_per_day
    checkpoint          {"kind": "blocking" | "async" | "two-level", "block_s": training stops for a save, "write_s":
                        until it is durable after that, "restore_s", "state_bytes", "local": null | {"block_s",
                        "restart_s", "share", "every": intervals between two remote saves}}
    restart             {"total_s", "repair_wait_s", "phases": [{"name": a name of badput, "seconds"}]}
    intervals           [{"name", "interval_s", "goodput", "valid", "why_not", "source"}]: Young, Daly, exact, ...
    interval            {"value_s", "steps": null | n, "floor_s", "given": whether the user asked for it}
    goodput             {"value", "source": "estimated", "first_order"}: useful share of the time, in the long run
    simulated           [{"law", "shape", "value", "low", "high", "confidence", "failures", "seed", "agrees",
                        "days": null | {"median", "p5", "p95"}}]: first exponential (which the formula must agree with)
    curve               {"interval_s": [...], "goodput": [...], "simulated": {"interval_s": [...], "goodput": [...],
                        "low": [...], "high": [...]}}: goodput over the interval between saves, ascending
    ledger              [{"name", "seconds", "share"}]: useful work first, then badput by its standard names; shares add
                        up to 1 and seconds to `total_s`
    total_s             the run's length where there is a budget of tokens, else one day
    spares              {"count", "wanted", "reached", "repair_s", "in_repair": mean number of nodes, "table":
                        [{"spares", "probability"}]}
    budget              null | {"tokens", "steps", "step_time_s", "step_time_source", "useful_s", "total_s", "days",
                        "failures", "chips", "spare_chips", "chip_hours", "price_per_chip_hour", "money"}
    sensitivity         [{"name", "value", "unit", "elasticity", "halved_goodput", "gain"}]: the largest gain first
    assumptions         [text]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxplan.goodput.assessment import Assessment
from jaxplan.goodput.badput import Entry
from jaxplan.goodput.simulation import Simulated
from jaxplan.report.finite import finite
from jaxplan.units import DAY_S

SCHEMA = "jaxplan.goodput/1"


@dataclass(frozen=True)
class Input:
    """One figure that went in; `unit` is `s`, `B`, `B/s`, or empty. `flag` changes it."""

    name: str
    value: float
    unit: str
    source: str
    flag: str = ""


@dataclass(frozen=True)
class GoodputReport:
    """One assessment and where its inputs come from.

    Attributes:
        label: the plan's decisions in words, or what the job was called.
        plan: the plan's path.
        machine: in words.
        step_source: the tier that said the plan's step time.
    """

    assessment: Assessment
    label: str
    inputs: tuple[Input, ...]
    plan: str | None = None
    machine: str = ""
    state_bytes: float | None = None
    step_source: str = ""
    assumptions: tuple[str, ...] = ()

    @property
    def total_s(self) -> float:
        """What the ledger's shares are of: the run where there is a budget of tokens, else a day."""
        budget = self.assessment.budget
        return DAY_S if budget is None else budget.total_s

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """Useful work, then the rest, largest first."""
        useful, *rest = self.assessment.ledger.entries
        return (useful, *sorted(rest, key=lambda entry: -entry.share))


def goodput_json(report: GoodputReport) -> dict[str, Any]:
    """Schema `jaxplan.goodput/1`."""
    found = report.assessment
    failures = found.question.failures
    return finite({
        "schema": SCHEMA,
        "plan": report.plan,
        "label": report.label,
        "inputs": [{"name": i.name, "value": i.value, "unit": i.unit, "source": i.source} for i in report.inputs],
        "nodes": failures.nodes,
        "chips": failures.nodes * found.question.chips_per_node,
        "mtbf_s": failures.mtbf_s,
        "failures_per_day": failures.per_day,
        "checkpoint": _checkpoint(report),
        "restart": {
            "total_s": found.setting.restart_s,
            "repair_wait_s": found.setting.wait_s,
            "phases": [{"name": phase.name, "seconds": phase.seconds} for phase in found.phases],
        },
        "intervals": [
            {
                "name": answer.name,
                "interval_s": answer.interval_s,
                "goodput": answer.goodput,
                "valid": not answer.why_not,
                "why_not": answer.why_not,
                "source": answer.source,
            }
            for answer in found.answers
        ],
        "interval": {
            "value_s": found.interval_s,
            "steps": found.interval_steps,
            "floor_s": found.floor_s,
            "given": found.question.interval_s is not None,
        },
        "goodput": {"value": found.goodput, "source": "estimated", "first_order": found.first_order},
        "simulated": [
            _simulated(one, found.goodput, days) for one, days in zip(found.simulated, found.days, strict=True)
        ],
        "curve": _curve(report),
        "ledger": [
            {"name": entry.name, "seconds": entry.share * report.total_s, "share": entry.share}
            for entry in report.ledger
        ],
        "total_s": report.total_s,
        "spares": {
            "count": found.spares.count,
            "wanted": found.spares.wanted,
            "reached": found.spares.reached,
            "repair_s": found.question.repair_s,
            "in_repair": found.spares.in_repair,
            "table": [{"spares": n, "probability": p} for n, p in found.spares.table],
        },
        "budget": _budget(report),
        "sensitivity": [
            {
                "name": lever.name,
                "value": lever.value,
                "unit": "1/s" if lever.name == "failure rate" else "s",
                "elasticity": lever.elasticity,
                "halved_goodput": lever.halved_goodput,
                "gain": lever.gain,
            }
            for lever in found.levers
        ],
        "assumptions": list(report.assumptions),
    })


def _checkpoint(report: GoodputReport) -> dict[str, Any]:
    found = report.assessment
    local = found.local
    return {
        "kind": "two-level" if local is not None else found.question.kind,
        "block_s": found.setting.block_s,
        "write_s": found.setting.write_s,
        "restore_s": found.restore_s,
        "state_bytes": report.state_bytes,
        "local": None if local is None else {
            "block_s": local.block_s,
            "restart_s": local.restart_s,
            "share": local.share,
            "every": found.pattern.every,
        },
    }


def _simulated(one: Simulated, value: float, days: tuple[float, float, float] | None) -> dict[str, Any]:
    low, middle, high = (None, None, None) if days is None else (seconds / DAY_S for seconds in days)
    return {
        "law": one.law.name,
        "shape": one.law.shape,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "confidence": one.confidence,
        "failures": one.failures,
        "seed": one.seed,
        "agrees": one.holds(value),
        "days": None if days is None else {"median": middle, "p5": low, "p95": high},
    }


def _curve(report: GoodputReport) -> dict[str, Any]:
    curve = report.assessment.curve
    points = curve.checked
    return {
        "interval_s": list(curve.interval_s),
        "goodput": list(curve.goodput),
        "simulated": {
            "interval_s": [interval for interval, _ in points],
            "goodput": [one.value for _, one in points],
            "low": [one.low for _, one in points],
            "high": [one.high for _, one in points],
        },
    }


def _budget(report: GoodputReport) -> dict[str, Any] | None:
    budget = report.assessment.budget
    if budget is None:
        return None
    return {
        "tokens": budget.work.tokens,
        "steps": budget.work.steps,
        "step_time_s": budget.work.step_s,
        "step_time_source": report.step_source,
        "useful_s": budget.work.useful_s,
        "total_s": budget.total_s,
        "days": budget.days,
        "failures": report.assessment.expected_failures,
        "chips": budget.chips,
        "spare_chips": budget.spare_chips,
        "chip_hours": budget.chip_hours,
        "price_per_chip_hour": budget.price_per_chip_hour,
        "money": budget.money,
    }
