"""Rendering of reports as text: rich tables for a terminal, plain columns for a pipe. Nothing is computed here."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table as Grid

from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import Plan
from jaxplan.report.search import Row, SearchReport
from jaxplan.units import GIB, format_bytes, format_count, format_range_seconds, format_seconds, significant
from jaxplan.workload.shape import Workload

NUMBERS = ("#", "micro", "MFU", "tokens/s/chip")
LEDGER = ("params", "optimizer", "gradients", "activations", "workspace")
WIDE_COLUMNS = 150
PLAIN_GAP, RULED_GAP = 2, 3     # columns between two columns, without and with a ruled head

#: The flag that sets each field of a workload with a mixture of experts.
EXPERT_FLAGS = {"dispatch": "--dispatch", "capacity_factor": "--capacity-factor", "hot_expert_factor": "--hot-expert"}


def header(machine: Machine, workload: Workload, parameters: int | None) -> list[str]:
    """What is searched and what was assumed, one line each, every assumption with the flag that changes it."""
    flags = {name: f"--{name}" for name in ("chip", "mesh", "batch", "seq")}
    flags["model"] = "--model, --hf, --workload"

    def assumed(*names: str) -> str:
        taken = [flags[n] for n in names if n in workload.defaults or n in machine.defaults]
        return f"  (default; {', '.join(taken)})" if taken else ""

    flags |= EXPERT_FLAGS
    count = f", {format_count(parameters)} parameters" if parameters else ""
    tokens = f"{workload.batch:,} x {workload.seq:,} tokens = {format_count(workload.tokens)} tokens a step"
    lines = [
        f"Machine   {machine.describe()}{assumed('chip', 'mesh')}",
        f"Memory    {machine.memory_note}",
        f"Model     {workload.name}{count}, {workload.optimizer}{assumed('model')}",
        f"Batch     {tokens}{assumed('batch', 'seq')}",
    ]
    if workload.model is not None and workload.model.experts is not None:
        said = {
            "capacity": f"an expert takes at most {workload.capacity_factor:g} times its even share of tokens",
            "dropless": f"the busiest device gets {workload.hot_expert_factor:g} times its even share of tokens",
        }
        lines.append(f"Experts   {workload.dispatch}: {said[workload.dispatch]}{assumed(*EXPERT_FLAGS)}")
    return lines + [f"Note      {note}" for note in machine.notes]


def plan_words(plan: Plan) -> str:
    """A plan's mesh with the decisions that have no column of their own."""
    extra = []
    if plan.zero1:
        extra.append("zero2" if plan.zero2 else "zero1")
    if plan.size("context") > 1:
        extra.append(plan.context_attention)
    if plan.stages > 1:
        extra.append(plan.schedule if plan.repeats == 1 else f"{plan.schedule} x{plan.repeats}")
    if plan.offload_optimizer:
        extra.append("offload")
    if not plan.sequence_sharding and plan.size_of_role("tensor") > 1:
        extra.append("whole-seq")
    return " ".join([plan.label, *extra])


def plans_grid(rows: tuple[Row, ...], plain_text: bool, width: int) -> Grid:
    """The table of plans: more columns where the terminal is wide, the least needed left out where it is narrow."""
    columns = {
        "#": [str(i + 1) for i in range(len(rows))],
        "mesh": [plan_words(row.plan) for row in rows],
        "remat": [row.plan.remat for row in rows],
        "micro": [str(row.plan.microbatches) for row in rows],
        "memory/device": [_memory(row, first=i == 0) for i, row in enumerate(rows)],
        "step time": [_time(row) for row in rows],
        "MFU": [f"{row.mfu:.0%}" for row in rows],
        "limited by": [row.bottleneck for row in rows],
        "proof": [row.proof for row in rows],
    }
    if width >= WIDE_COLUMNS:
        columns["tokens/s/chip"] = [f"{row.tokens_per_s_per_chip:,.0f}" for row in rows]
    gap = PLAIN_GAP if plain_text else RULED_GAP
    if not plain_text:
        _narrow(columns, rows, gap, width)
    grid = Grid(box=None if plain_text else box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        grid.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=name != "mesh", overflow="fold")
    for cells in zip(*columns.values(), strict=True):
        grid.add_row(*cells)
    return grid


def _narrow(columns: dict[str, list[str]], rows: tuple[Row, ...], gap: int, width: int) -> None:
    """Leaves out, in this order, what the table can do without, until it is no wider than that."""
    for name in ("limited by", "bounds", "MFU", "micro", "remat"):
        if sum(max(map(len, [title, *cells])) + gap for title, cells in columns.items()) - gap <= width:
            return
        if name == "bounds":
            columns["step time"] = [format_seconds(row.step_time_s["value"]) for row in rows]
            continue
        cells = columns.pop(name)
        if name == "remat":     # rows may differ in nothing else: it joins the mesh, which may be folded
            columns["mesh"] = [f"{mesh}, {remat}" for mesh, remat in zip(columns["mesh"], cells, strict=True)]


def _memory(row: Row, first: bool) -> str:
    total, capacity = row.memory_bytes["total"] / GIB, row.memory_bytes["capacity"] / GIB
    return f"{significant(total)} / {significant(capacity)} GiB" if first else significant(total)


def _time(row: Row) -> str:
    return format_range_seconds(row.step_time_s["value"], row.step_time_s["low"], row.step_time_s["high"])


def proof_words(proof: Any) -> str:
    """What a proof found, in a few words: the host's temporaries do not transfer, so only its arguments are told."""
    if not proof.ok or proof.memory is None:
        return ""
    warned = len([d for d in proof.diagnostics if d.kind == "full rematerialization"])
    found = [f"arguments {format_bytes(proof.memory.argument_bytes)}"]
    if proof.tier == "compiled":
        found = [format_bytes(proof.total_bytes)]
        if proof.step_time_s:
            found.append(format_seconds(proof.step_time_s))
    if warned:
        found.append(f"{warned} full rematerializations")
    return ", " + ", ".join(found)


def comparison(report: SearchReport) -> list[str]:
    """How the best compares with the plain plan, and whether the first two are near a tie."""
    lines = []
    if not report.rows:
        return lines
    best = report.rows[0]
    if report.plain is not None and report.plain.candidate != best.candidate:
        shown = [i + 1 for i, row in enumerate(report.rows) if row.candidate == report.plain.candidate]
        place = f" (#{shown[0]})" if shown else ""
        plain_s = report.plain.step_time_s["value"]
        remat = f" with {report.plain.plan.remat} remat" if report.workload.model is not None else ""
        slower = plain_s / best.step_time_s["value"] - 1
        lines.append(
            f"Plain FSDP{remat}, what most people would start with{place}: {report.plain.proof} "
            f"{format_seconds(plain_s)}, {abs(slower):.0%} {'slower' if slower > 0 else 'faster'} than #1."
        )
    if len(report.rows) > 1:
        gap = report.rows[1].step_time_s["value"] / best.step_time_s["value"] - 1
        if gap < 0.05:
            lines.append(f"#1 and #2 are near a tie ({gap:.1%}): a short run of both would decide.")
    return lines


def why_lines(report: SearchReport) -> list[str]:
    """Why the best plan has the roles that it has: what its rivals cost, one line each."""
    lines = []
    for why in report.why:
        rival, word = why.rival, "without" if why.rival.without else "with"
        if why.plan is None:
            lines.append(f"  {word} {rival.axis}: no plan fits")
            continue
        change = f"{abs(why.share):.1%} {'slower' if why.share > 0 else 'faster'}"
        what = rival.entry.removeprefix("exposed ")
        cause = f", {what} +{format_seconds(rival.entry_s)}" if rival.entry_s > 0 and why.share > 0 else ""
        lines.append(f"  {word} {rival.axis}: {change}{cause} ({plan_words(why.plan)}, {why.plan.remat} remat)")
    head = "Why #1 has the axes that it has (the best plan otherwise; estimates, corrected by what was compiled):"
    return [head, *lines] if lines else []


def no_fit(report: SearchReport) -> list[str]:
    """The nearest miss with its binding terms, and the smallest change that would fit."""
    machine = report.machine
    what = f"No plan fits {machine.devices} device{'s' if machine.devices > 1 else ''} of {{}}."
    if not report.misses:
        return [what.format(format_bytes(machine.device_hbm_bytes)), *rejected_lines(report)]
    nearest = report.misses[0]
    memory = nearest.memory_bytes
    parts = sorted(((n, memory[n]) for n in LEDGER), key=lambda part: -part[1])
    named = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts[:3])
    micro = f"{nearest.plan.microbatches} microbatch{'es' if nearest.plan.microbatches > 1 else ''}"
    margin = " (estimates keep a margin below the memory)" if memory["total"] <= memory["capacity"] else ""
    changes = "; ".join(f"{change.words}: {change.flags}" for change in report.changes)
    return [
        f"{what.format(format_bytes(memory['capacity']))} Nearest: "
        f"{plan_words(nearest.plan)}, {nearest.plan.remat} remat, {micro}: "
        f"{format_bytes(memory['total'])} a device{margin}, of which {named}.",
        f"What would fit: {changes}" if changes else "No change that was tried would fit.",
    ]


def rejected_lines(report: SearchReport) -> list[str]:
    """How many candidates were refused before pricing, and why."""
    if not report.rejected:
        return []
    reasons = sorted(report.rejected.items(), key=lambda entry: -entry[1])
    return ["Not considered: " + "; ".join(f"{reason} ({count:,})" for reason, count in reasons)]
