"""Published runs beside their predictions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxplan.estimate.shapes.facts import Facts, Model, stack
from jaxplan.estimate.shapes.rates import Rates
from jaxplan.estimate.shapes.step import Step, step
from jaxplan.machine.calibration import Calibration
from jaxplan.validate.conventions import model_flops_per_token, published_step_s
from jaxplan.validate.entries import entries
from jaxplan.validate.facts import Case, case_of
from jaxplan.validate.footprint import footprints
from jaxplan.validate.layouts import sizes_of
from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import PublishedRun
from jaxplan.validate.row import Row
from jaxplan.validate.split import part_of

FIELDS = tuple(field.name for field in dataclasses.fields(Rates))


@dataclass(frozen=True)
class Batch:
    """Cases as arrays, with the parameters that each one's rates are made of.

    Attributes:
        factors: float [fields, cases].
        chosen: bool [fields, cases, parameters], where a parameter multiplies a rate.
    """

    cases: tuple[Case, ...]
    facts: Facts
    names: tuple[str, ...]
    factors: np.ndarray
    chosen: np.ndarray

    @classmethod
    def of(cls, cases: Sequence[Case], names: Sequence[str]) -> Batch:
        known = {name: i for i, name in enumerate(names)}
        found = [entries(case, known) for case in cases]
        factors = np.array([[one[field].factor for one in found] for field in FIELDS])
        chosen = np.zeros((len(FIELDS), len(cases), len(names)), dtype=bool)
        for f, field in enumerate(FIELDS):
            for c, one in enumerate(found):
                chosen[f, c, [known[name] for name in one[field].names]] = True
        return cls(tuple(cases), stack([case.facts for case in cases]), tuple(names), factors, chosen)

    def part(self, where: np.ndarray) -> Batch:
        """The cases at these positions."""
        cases = tuple(self.cases[i] for i in where)
        facts = stack([case.facts for case in cases])
        return Batch(cases, facts, self.names, self.factors[:, where], self.chosen[:, where])

    def rates(self, values: Mapping[str, float]) -> Rates:
        logs = np.log([values[name] for name in self.names])
        found = self.factors * np.exp(self.chosen @ logs)
        return Rates(**dict(zip(FIELDS, found, strict=True)))

    def step(self, values: Mapping[str, float]) -> Step:
        return step(self.facts, self.rates(values))


def cases_of(runs: Iterable[PublishedRun]) -> tuple[dict[int, Case], dict[int, str]]:
    """Runs that can be predicted, and why the others cannot, both by position: a user's file may repeat an id."""
    cases: dict[int, Case] = {}
    why: dict[int, str] = {}
    for i, run in enumerate(runs):
        try:
            cases[i] = case_of(run)
        except Unpredictable as error:
            why[i] = str(error)
    return cases, why


def predict_all(runs: Sequence[PublishedRun], calibration: Calibration) -> tuple[Row, ...]:
    """A row for every run, in their order."""
    cases, why = cases_of(runs)
    if not cases:
        return tuple(unpredicted(run, why[i]) for i, run in enumerate(runs))
    batch = Batch.of(list(cases.values()), [p.name for p in calibration.parameters])
    found = dict(zip(cases, rows_of(batch, batch.step(calibration.values), calibration), strict=True))
    return tuple(found[i] if i in found else unpredicted(run, why[i]) for i, run in enumerate(runs))


def rows_of(batch: Batch, steps: Step, calibration: Calibration) -> list[Row]:
    """The rows of a batch's cases."""
    value, memory = np.asarray(steps.value), footprints(batch.cases)
    low = np.minimum(steps.low, value * calibration.below)
    high = np.maximum(steps.high, value * calibration.above)
    lines = {name: np.broadcast_to(line, value.shape) for name, line in steps.ledger.items()}
    rows = []
    for i, case in enumerate(batch.cases):
        ledger = {name: float(line[i]) for name, line in lines.items() if line[i]}
        seconds, figures = math.fsum(ledger.values()), (low[i], high[i], memory.value[i])
        if not all(math.isfinite(figure) for figure in (seconds, *figures)) or seconds <= 0:
            rows.append(unpredicted(case.run, f"out of its sizes come {seconds:g} s, {memory.value[i]:g} bytes"))
            continue
        rows.append(
            Row(
                **_about(case.run, group_of(case), case.facts.model),
                **_work(case),
                predicted_step_time_s=seconds,
                low_s=float(low[i]),
                high_s=float(high[i]),
                ledger_s=ledger,
                predicted_memory_bytes=float(memory.value[i]),
                capacity_bytes=float(memory.capacity[i]),
                fits=bool(memory.fits[i]),
                not_predicted=None,
            )
        )
    return rows


def _work(case: Case) -> dict[str, Any]:
    run, tokens = case.run, _tokens(case.run)
    per_token = model_flops_per_token(case.facts.model, float(run.seq_len or 0), causal=True)
    return {
        "tokens_per_step": tokens,
        "model_flops": tokens * per_token / run.n_devices if tokens else None,
        "peak_flops_per_s": float(case.facts.chip.flops_per_s),
    }


def _tokens(run: PublishedRun) -> float | None:
    return run.global_batch * run.seq_len if run.global_batch and run.seq_len else None


def group_of(case: Case) -> str:
    return "MoE" if case.run.model.experts else case.profile.group


def _about(run: PublishedRun, group: str, model: Model | None) -> dict[str, Any]:
    """What the source says."""
    memory = run.memory_gib or run.memory_gb_reported
    m = run.model
    shape = f"{m.layers}x{m.d_model}x{m.d_ff} heads {m.heads}/{m.kv_heads}" if m.layers else ""
    experts = f" experts {m.experts} top {m.top_k} capacity {run.capacity_factor or '-'}" if m.experts else ""
    return {
        "id": run.id,
        "chip": run.chip,
        "framework": run.framework,
        "group": group,
        "kind": run.kind,
        "grade": run.grade,
        "source": run.source,
        "series": run.series,
        "varies": run.varies,
        "devices": run.n_devices,
        "part": part_of(run),
        "published_step_time_s": None if run.oom else published_step_s(run, model),
        "published_memory_bytes": memory * 2**30 if memory and not run.oom else None,
        "memory_kind": run.memory_kind or "",
        "oom": run.oom,
        "doubt": _doubt(run),
        "workload": f"{m.name} {shape}{experts} seq {run.seq_len} vocab {m.vocab}" if shape else "",
    }


def _doubt(run: PublishedRun) -> str | None:
    """The source's, and that its axes are not its devices."""
    product = sizes_of(run).devices
    axes = f"its axes multiply up to {product}, it has {run.n_devices} devices" if product != run.n_devices else None
    return "; ".join(filter(None, (run.doubt, axes))) or None


def unpredicted(run: PublishedRun, reason: str) -> Row:
    """The row of a run that cannot be predicted."""
    try:
        model = model_of(run.model)
    except Unpredictable:
        model = None
    return Row(
        **_about(run, "MoE" if run.model.experts else run.framework, model),
        tokens_per_step=_tokens(run),
        model_flops=None,
        peak_flops_per_s=None,
        predicted_step_time_s=None,
        low_s=None,
        high_s=None,
        ledger_s={},
        predicted_memory_bytes=None,
        capacity_bytes=None,
        fits=None,
        not_predicted=reason,
    )

