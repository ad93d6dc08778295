"""What a search found, as data: the JSON of `search` and the rows of its table.

Schema `jaxplan.search/1`; its keys do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxplan.estimate.ledger import Estimate
from jaxplan.machine.topology import Machine
from jaxplan.plan.decisions import shown
from jaxplan.plan.plan import Plan
from jaxplan.search.progress import Progress
from jaxplan.search.rank import MEMORY_MARGIN
from jaxplan.search.rivals import Rival, rivals
from jaxplan.search.why import Change, baseline, binding_term, misses
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

SCHEMA = "jaxplan.search/1"


@dataclass(frozen=True)
class Row:
    """One plan of the result: its decisions, what is known of it, and from which tier."""

    candidate: int
    plan: Plan
    estimate: Estimate
    memory_bytes: Mapping[str, Any]
    step_time_s: Mapping[str, Any]
    mfu: float
    bottleneck: str
    proof: str
    fits: bool
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.plan.workload.tokens / self.step_time_s["value"] / self.plan.machine.chips

    def to_json(self, rank: int, path: str | None) -> dict[str, Any]:
        plan = self.plan
        return {
            "rank": rank,
            **shown(plan),
            "roles": plan.roles,
            "fits": self.fits,
            "binding_term": binding_term(self.estimate),
            "memory_bytes": dict(self.memory_bytes),
            "step_time_s": dict(self.step_time_s),
            "mfu": self.mfu,
            "tokens_per_s_per_chip": self.tokens_per_s_per_chip,
            "bottleneck": self.bottleneck,
            "notes": list(self.notes),
            "plan": path,
        }


def row_of(progress: Progress, candidate: int, table: Table) -> Row:
    """Everything known of one candidate; a later tier's figure replaces an earlier one."""
    plan, estimate = progress.plan_of(candidate), progress.ranking.estimate(candidate)
    proofs = progress.proofs.get(candidate, {})
    compiled = proofs.get("compile")
    memory = _memory(plan.machine, estimate, compiled, float(progress.memory_ratio[candidate]))
    time = _time(estimate, compiled, float(progress.time_ratio[candidate]))
    peak = plan.machine.devices * plan.machine.device_flops_per_s(table.compute_dtype)
    bottleneck = estimate.bottleneck
    if compiled is not None and compiled.ok and compiled.bottleneck:
        bottleneck = compiled.bottleneck
    notes = tuple(proof.message for proof in proofs.values() if proof.refuses and proof.message)
    return Row(
        candidate=candidate,
        plan=plan,
        estimate=estimate,
        memory_bytes=memory,
        step_time_s=time,
        mfu=table.needed_flops(plan.workload.room_factor) / peak / time["value"],
        bottleneck=bottleneck,
        proof=proof_word(proofs),
        fits=memory["total"] * (1 if memory["source"] == "compiled" else 1 + MEMORY_MARGIN) <= memory["capacity"]
        and not notes,
        notes=notes,
    )


def proof_word(proofs: Mapping[str, Any]) -> str:
    """The highest tier that spoke, or why it refused."""
    for tier, word in (("compile", "compiled"), ("partition", "partitioned")):
        if tier in proofs and (proofs[tier].ok or proofs[tier].refuses):
            return word if proofs[tier].ok else proofs[tier].status
    return "estimated"


def _memory(machine: Machine, estimate: Estimate, compiled: Any, ratio: float) -> dict[str, Any]:
    """The memory ledger; its parts add up to its total.

    A compiled total is a fact; within it parameters, optimizer and batch are exact, gradients and activations are the
    formulas', and the workspace is what remains.
    """
    parts = {name: round(value) for name, value in estimate.memory_bytes.items()}
    # what was learned of other plans' temporaries does not shrink the state, whose bytes are exact
    exact = parts["params"] + parts["optimizer"] + parts["batch"]
    source, total = "estimated", max(exact, round(estimate.total_bytes * ratio))
    if compiled is not None and compiled.total_bytes:
        source, total = "compiled", round(compiled.total_bytes)
    temporary = total - exact
    held = parts["gradients"] + parts["activations"]
    if held > temporary >= 0:
        parts["gradients"] = parts["gradients"] * temporary // held
        parts["activations"] = temporary - parts["gradients"]
    parts["workspace"] = temporary - parts["gradients"] - parts["activations"]
    return {
        "total": total,
        "capacity": machine.device_hbm_bytes,
        **parts,
        "source": source,
        "estimated_total": round(estimate.total_bytes),
    }


def _time(estimate: Estimate, compiled: Any, ratio: float) -> dict[str, Any]:
    if compiled is not None and compiled.ok and compiled.step_time_s:
        return {
            "value": compiled.step_time_s,
            "low": min(compiled.step_time_low_s, compiled.step_time_s),
            "high": max(compiled.step_time_high_s, compiled.step_time_s),
            "source": "compiled",
            "estimated": estimate.value_s,
        }
    return {
        "value": estimate.value_s * ratio,
        "low": estimate.low_s * min(1.0, ratio),
        "high": estimate.high_s * max(1.0, ratio),
        "source": "estimated",
        "estimated": estimate.value_s,
    }


@dataclass(frozen=True)
class Why:
    """Why the best plan has a role or has it not: its rival by the estimates (`search.rivals`).

    Attributes:
        plan: the rival's; None where none fits.
        share: how much slower it is, over the best plan's time.
    """

    rival: Rival
    plan: Plan | None
    share: float

    def to_json(self) -> dict[str, Any]:
        rival, plan = self.rival, self.plan
        return {
            "axis": rival.axis,
            "rival": "without" if rival.without else "with",
            "mesh": plan.sizes if plan is not None else None,
            "remat": plan.remat if plan is not None else None,
            "slower_s": rival.slower_s if plan is not None else None,
            "because": rival.entry,
            "because_s": rival.entry_s,
        }


@dataclass(frozen=True)
class SearchReport:
    """The whole result: what was searched, how it went, and the rows, best first.

    `rows` holds what fits; `misses` the nearest ones where nothing does, and `changes` what would then fit; `plain` is
    what most people would start with.
    """

    machine: Machine
    workload: Workload
    parameters: int
    candidates: int
    feasible: int
    rejected: Mapping[str, int]
    seconds: Mapping[str, float]
    tiers: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    misses: tuple[Row, ...]
    refused: tuple[Row, ...]
    plain: Row | None
    stopped: str
    changes: tuple[Change, ...] = ()
    why: tuple[Why, ...] = ()

    def to_json(self, paths: Mapping[int, str]) -> dict[str, Any]:
        would_fit = {"would_fit": [asdict(change) for change in self.changes]}
        plans = [row.to_json(i + 1, paths.get(row.candidate)) for i, row in enumerate(self.rows)]
        plans = plans or [{**row.to_json(i + 1, None), **would_fit} for i, row in enumerate(self.misses)]
        return {
            "schema": SCHEMA,
            "machine": {"name": self.machine.name, **self.machine.to_json()},
            "workload": {**self.workload.to_json(), "parameters": self.parameters},
            "candidates": self.candidates,
            "feasible": self.feasible,
            "rejected": dict(self.rejected),
            "seconds": dict(self.seconds),
            "tiers": {k: dict(v) for k, v in self.tiers.items()},
            "stopped": self.stopped,
            "plans": plans,
            "refused": [row.to_json(0, None) for row in self.refused],
            "plain": self.plain.to_json(0, None) if self.plain else None,
            "why": [why.to_json() for why in self.why],
        }


def search_report(
    progress: Progress,
    table: Table,
    workload: Workload,
    seconds: Mapping[str, float],
    top: int,
    changes: tuple[Change, ...] = (),
) -> SearchReport:
    """Takes the state of a search, finished or interrupted, and lays it out."""
    ranking = progress.ranking
    order = progress.order()
    proved = [row for row in order if row in progress.compiled()]
    others = [row for row in order if row not in proved]
    # proved plans stand first among equals; an estimate stands where its corrected time puts it
    rows = sorted([*proved, *others[: max(top, 3)]], key=progress.score)
    start = baseline(ranking)
    return SearchReport(
        machine=ranking.machine,
        workload=workload,
        parameters=table.parameter_count,
        candidates=len(ranking.space),
        feasible=int(ranking.fits.sum()),
        rejected={**ranking.space.rejected, **_unplaceable(progress)},
        seconds=seconds,
        tiers=_tiers(progress),
        rows=tuple(row_of(progress, row, table) for row in rows),
        misses=() if rows else tuple(row_of(progress, row, table) for row in misses(ranking)),
        refused=tuple(row_of(progress, row, table) for row in progress.refused()),
        plain=row_of(progress, start, table) if start is not None else None,
        stopped=progress.stopped,
        changes=changes,
        why=_why(progress, rows[0]) if rows else (),
    )


def _why(progress: Progress, best: int) -> tuple[Why, ...]:
    times_s = progress.times_s
    return tuple(
        Why(
            rival,
            progress.plan_of(rival.candidate) if rival.candidate is not None else None,
            float(rival.slower_s / times_s[best]),
        )
        for rival in rivals(progress.ranking, best, times_s)
    )


def _unplaceable(progress: Progress) -> dict[str, int]:
    ranking = progress.ranking
    count = int((~ranking.placeable).sum())
    return {"mesh does not factor onto the machine's physical axes": count} if count else {}


def _tiers(progress: Progress) -> dict[str, dict[str, Any]]:
    """How many proofs of each tier there are, and how many were good."""
    tiers: dict[str, dict[str, Any]] = {}
    for found in progress.proofs.values():
        for tier, proof in found.items():
            entry = tiers.setdefault(tier, {"tried": 0, "ok": 0})
            entry["tried"] += 1
            entry["ok"] += int(proof.ok)
    return tiers
