"""From a row of a search to the record that `plan.json` holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxplan.estimate.memory import PARTS
from jaxplan.machine.reached import (
    attention_fraction,
    hidden_share,
    matmul_fraction,
    memory_fraction,
    sustained_fraction,
)
from jaxplan.plan.record import (
    MemoryLedger,
    Part,
    PlanRecord,
    RunnerUp,
    SearchRecord,
    Source,
    TimeLedger,
    installed_versions,
    leaf_specs,
)
from jaxplan.report.search import Row, SearchReport
from jaxplan.search.dims import roles_of_dims
from jaxplan.search.progress import Progress
from jaxplan.workload.table import Table

EXACT = ("params", "optimizer", "batch")       # their bytes follow from the PartitionSpecs alone
TIER_OF = {"partition": "partitioned", "compile": "compiled"}


def record_of(report: SearchReport, row: Row, progress: Progress, table: Table) -> PlanRecord:
    """Everything known about one plan of a search."""
    plan, proofs = row.plan, progress.proofs.get(row.candidate, {})
    parameters, optimizer, batch = leaf_specs(table, plan.rules, tuple(plan.sizes))
    placement = progress.ranking.network.placements[int(progress.ranking.space.mesh[row.candidate])]
    links = {a: placement.links((a,)).medium for a, size in plan.sizes.items() if size > 1} if placement else {}
    return PlanRecord(
        plan=plan,
        parameters=parameters,
        optimizer=optimizer,
        batch=batch,
        placement=links,
        memory=_memory(row),
        time=_time(row, proofs.get("compile")),
        evidence={"estimated": row.estimate.evidence(), **{TIER_OF[t]: proof.to_json() for t, proof in proofs.items()}},
        search=_search(report, row),
        versions=installed_versions(),
        assumptions=assumptions(report, table),
    )


def _memory(row: Row) -> MemoryLedger:
    source: Source = "compiled" if row.memory_bytes["source"] == "compiled" else "estimated"
    parts = tuple(
        Part(name, row.memory_bytes[name], source if name in EXACT or name == "workspace" else "estimated")
        for name in PARTS
    )
    return MemoryLedger(parts, row.memory_bytes["capacity"])


def _time(row: Row, compiled: Any) -> TimeLedger:
    """The compiler's time ledger where there is one, else the estimate's, scaled as the row's value was."""
    time = row.step_time_s
    if compiled is not None and compiled.ok and compiled.schedule is not None:
        entries: Mapping[str, float] = dict(compiled.schedule.ledger)
        source: Source = "compiled"
    else:
        scale = time["value"] / row.estimate.value_s
        entries = {name: spent * scale for name, spent in row.estimate.time_s.items()}
        source = "estimated"
    parts = tuple(Part(n, s, source) for n, s in entries.items())
    total = math.fsum(entries.values())     # the value up to rounding, within its bounds all the same
    return TimeLedger(parts, min(time["low"], total), max(time["high"], total))


def _search(report: SearchReport, row: Row) -> SearchRecord:
    best = row.step_time_s["value"]
    others = tuple(
        RunnerUp(
            label=other.plan.label,
            remat=other.plan.remat,
            microbatches=other.plan.microbatches,
            step_time_s=other.step_time_s["value"],
            margin=other.step_time_s["value"] / best - 1,
            source=other.step_time_s["source"],
            note="; ".join(other.notes),
        )
        for other in report.rows
        if other.candidate != row.candidate
    )
    return SearchRecord(report.candidates, report.feasible, report.rejected, others)


def assumptions(report: SearchReport, table: Table) -> tuple[str, ...]:
    """What was assumed, one sentence each."""
    machine, workload = report.machine, report.workload
    out = [f"{name} was not given: {getattr(workload, name).name if name == 'model' else getattr(workload, name)}"
           for name in workload.defaults]
    best, sustained = matmul_fraction(machine), sustained_fraction(machine)
    known = "measured" if "matmul_fraction" in machine.chip.measured else "assumed: nobody's measurement is known"
    out.append(
        f"estimated matmuls run at {sustained:.0%} of the data sheet's peak (best {best:.0%}, {known}), attention at "
        f"{attention_fraction(machine):.0%}, passes over memory at {memory_fraction(machine):.0%} of its rate: "
        + (machine.calibrated_by or "calibrated on published runs (`jaxplan validate`)")
    )
    out.append(
        f"estimated: of weights' and gradients' collectives {hidden_share(machine):.0%} of what compute could hide is "
        "hidden, of activations' nothing"
    )
    if workload.matmul_dtype:
        out.append(
            f"the layers' matmuls are priced with {workload.matmul_dtype} operands; the program that is compiled "
            f"computes in {workload.compute_dtype}: its memory and collectives count, its time does not"
        )
    if workload.model is None:
        out += roles_of_dims(table)
    if table.uncovered:
        out.append(f"not priced: {dict(table.uncovered)}")
    return tuple(out)
