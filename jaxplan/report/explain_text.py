"""One plan explained, as lines of text; every section says the source of its figures. Nothing is computed here but
shares and sums."""

from __future__ import annotations

from collections import Counter

from jaxplan.plan.schedule import SCHEDULES
from jaxplan.report.columns import columns, paragraph
from jaxplan.report.explain import ExplainReport
from jaxplan.report.explain_axes import axes_lines, host_lines
from jaxplan.report.explain_changes import changes_lines, why_not_lines
from jaxplan.report.words import count_words, decision_words, flops_words, sign
from jaxplan.search.orders import Order
from jaxplan.search.rank import MEMORY_MARGIN
from jaxplan.units import GB, TERA, format_bytes, format_range_seconds, format_seconds, significant

SHOWN_BUFFERS = 8
SHOWN_WAITS = 3         # sets of axes that the device waits for
UNCORRECTED = 0.005     # a correction that changes less is not worth a word
CLOSED = ("gpipe", "circular", "1f1b", "interleaved")   # their bubble: `estimate.schedules.form.fill_and_drain`


def explain_lines(report: ExplainReport, width: int) -> list[str]:
    """The whole text, no line wider than that where words can be folded."""
    lines = _head(report, width)
    sections = (_time, _flops, _roofline, axes_lines, host_lines, _memory, _pipeline)
    for section in (*sections, _bottleneck, changes_lines, why_not_lines, _notes):
        found = section(report, width)
        lines += ["", *found] if found else []
    return lines


def _head(report: ExplainReport, width: int) -> list[str]:
    plan, work = report.plan, report.plan.workload
    lines = {
        "Plan": decision_words(plan),
        "Work": f"{work.name}, {work.batch:,} x {work.seq:,} tokens, {work.optimizer}, on {plan.machine.name}",
    }
    if plan.machine.attached is not None:
        lines["Rates"] = plan.machine.attached.said
    if report.record.stale:
        lines["Note"] = "changed after its evidence was gathered: all figures are estimated, of the plan as it is"
    if report.broken:
        lines["Illegal"] = f"{report.broken}: no search makes this plan"
    lines |= {"Memory": _verdict(report), "Step": _step(report)}
    if report.record.search is not None:
        lines["Search"] = f"{report.record.search.candidates:,} plans, {report.record.search.feasible:,} fit"
    return [line for name, said in lines.items() for line in paragraph(f"{name:<8}{said}", width)]


def _verdict(report: ExplainReport) -> str:
    said, total, capacity = report.verdict, report.total_bytes, report.capacity_bytes
    spare = f"{format_bytes(abs(capacity - total))} ({abs(1 - total / capacity):.0%})"
    counts = f"{format_bytes(total)} of {format_bytes(capacity)} a device"
    if said.fits:
        return f"fits ({said.source}): {counts}, {spare} to spare"
    if said.fits is None:
        margin = f"estimates have missed by up to {MEMORY_MARGIN:.0%}"
        return f"too close to tell ({said.source}): {counts}; {margin}: `jaxplan check` decides"
    if total <= capacity:
        return f"does not fit ({said.source}): {report.evidence[said.source].message or counts}"
    return f"does not fit ({said.source}): {counts}, {spare} too much"


def _step(report: ExplainReport) -> str:
    time, estimated = report.time, report.estimated_time
    measured = report.by_tier("step_time_s").get("measured")
    speed = f"measured {format_seconds(measured)}; " if measured is not None else ""
    speed += f"MFU {report.anatomy.mfu(report.step_s):.0%}, {report.tokens_per_s_per_chip:,.0f} tokens/s/chip"
    if report.compiled_time is not None:
        shown = format_range_seconds(time.value_s, time.low_s, time.high_s)
        return f"{shown}, compiled; {speed}; estimated {format_seconds(estimated.value_s)}"
    shown = format_range_seconds(estimated.value_s, estimated.low_s, estimated.high_s)
    factor = report.correction.time
    if abs(factor - 1) < UNCORRECTED:
        return f"{shown}, estimated; {speed}"
    alike = f"its search compiled plans like it, which took {significant(factor)} times their estimates"
    return f"{format_seconds(report.step_s)}, estimated and corrected; {speed}; estimated {shown}: {alike}"


def _time(report: ExplainReport, width: int) -> list[str]:
    ledgers = [ledger for ledger in (report.estimated_time, report.compiled_time) if ledger is not None]
    amounts = [{part.name: part.amount for part in ledger.parts} for ledger in ledgers]
    names = dict.fromkeys(name for found in amounts for name in found)
    rows = [["Time of a step", *[cell for ledger in ledgers for cell in (ledger.source, "")]]]
    for name in sorted(names, key=lambda name: -max(found.get(name, 0.0) for found in amounts)):
        cells = []
        for found, ledger in zip(amounts, ledgers, strict=True):
            spent = found.get(name)
            cells += ["", ""] if spent is None else [format_seconds(spent), f"{spent / ledger.value_s:.1%}"]
        rows.append([f"  {name}", *cells])
    rows.append(["  together", *[cell for one in ledgers for cell in (format_seconds(one.value_s), "100%")]])
    hidden = [cell for one in ledgers for cell in (format_seconds(one.low_s), "")]
    waited = [cell for one in ledgers for cell in (format_seconds(one.high_s), "")]
    rows += [["  (all hidden that can be)", *hidden], ["  (nothing hidden)", *waited]]
    return columns(rows, width, right=range(1, 5), indent="")


def _flops(report: ExplainReport, width: int) -> list[str]:
    found, compiled, devices = report.anatomy, report.compiled, report.plan.machine.devices
    more = found.executed_flops / found.model_flops - 1 if found.model_flops else 0.0
    said = f"FLOPs of a step: the model needs {flops_words(found.model_flops)}; executed on matrix units "
    said += f"{flops_words(found.executed_flops)} ({sign(more)}{abs(more):.0%}: what is done again"
    said += f"{', and in the bubble' * (found.bubble > 1)}; estimated)"
    if compiled is not None and compiled.flops:
        said += f", {flops_words(sum(compiled.flops.values()) * devices)} (compiled)"
    ideal = format_seconds(found.model_flops / (devices * found.chip.flops_per_s))
    return paragraph(f"{said}. The peak of {count_words(devices, 'device')} does the model's in {ideal}.", width)


def _roofline(report: ExplainReport, width: int) -> list[str]:
    chip = report.anatomy.chip
    reached = f" x {chip.fraction:.0%} reached" if chip.fraction < 1 else ""
    head = f"Roofline of a device (estimated): matmuls at {significant(chip.flops_per_s / TERA)} TFLOP/s{reached}, "
    head += f"memory at {chip.hbm_bytes_per_s / GB:,.0f} GB/s x {chip.hbm_fraction:.0%}; "
    head += f"bound by compute from {chip.ridge:.0f} FLOP/B"
    rows = [["", "work", "bytes", "FLOP/B", "time", "bound by"]]
    for line in report.anatomy.rooflines:
        name = f"{line.kind}, recomputed" if line.recomputed else line.kind
        figures = [flops_words(line.flops), format_bytes(line.nbytes), _intensity(line.intensity)]
        rows.append([name, *figures, format_seconds(line.seconds), line.bound])
    return [*paragraph(head, width), *columns(rows, width, right=range(1, 5))]


def _intensity(value: float) -> str:
    return "-" if value == float("inf") else significant(value)


def _memory(report: ExplainReport, width: int) -> list[str]:
    ledgers = [ledger for ledger in (report.estimated_memory, report.compiled_memory) if ledger is not None]
    amounts = [{part.name: part.amount for part in ledger.parts} for ledger in ledgers]
    rows = [["Memory of a device at the peak", "estimated", "compiled"][: 1 + len(ledgers)]]
    for name in dict.fromkeys(name for found in amounts for name in found):
        rows.append([f"  {name}", *[format_bytes(found.get(name, 0.0)) for found in amounts]])
    rows.append(["  together", *[format_bytes(ledger.total_bytes) for ledger in ledgers]])
    lines = columns(rows, width, right=range(1, 3), indent="")
    lines += paragraph(f"the peak is in {report.anatomy.estimate.moment} (estimated)", width, indent="  ")
    if report.compiled_memory is not None:
        told = "the compiler tells gradients, activations and workspace as one: they are divided as estimated"
        lines += paragraph(told, width, indent="  ")
    elif abs(report.correction.memory - 1) >= UNCORRECTED:
        alike = f"its search compiled plans like it, which took {significant(report.correction.memory)} times their "
        lines += paragraph(f"{alike}estimates: {format_bytes(report.total_bytes)}", width, indent="  ")
    return lines + _buffers(report, width)


def _buffers(report: ExplainReport, width: int) -> list[str]:
    """The largest buffers that the compiler names, equal ones in one line."""
    found = report.evidence.get("compiled")
    if found is None or not found.buffers:
        return []
    alike = Counter((buffer.nbytes, buffer.shape, buffer.kind, buffer.name) for buffer in found.buffers)
    largest = sorted(alike.items(), key=lambda entry: -entry[0][0])[:SHOWN_BUFFERS]
    rows = [
        [format_bytes(nbytes), f"{count} x" if count > 1 else "", shape, kind, name.rpartition("closed_call/")[2]]
        for (nbytes, shape, kind, name), count in largest
    ]
    return ["  largest at the peak (compiled)", *columns(rows, width, right=(0, 1), indent="    ")]


def _pipeline(report: ExplainReport, width: int) -> list[str]:
    plan, found = report.plan, report.anatomy
    if not found.orders:
        return []
    p, m, v = plan.stages, plan.microbatches, plan.repeats
    spent, idle = found.estimate.time_s.get("pipeline bubble", 0.0), 1 - 1 / found.bubble
    head = f"Pipeline: {p} stages, {m} microbatches, {plan.schedule}{f' of {v} chunks of layers a stage' * (v > 1)}: "
    head += f"waits {idle:.1%} of the layers' time, {format_seconds(spent)} a step (estimated)"
    if plan.schedule in CLOSED:
        head += f"; (p - 1) / (m v + p - 1) = {p - 1} / {m * v + p - 1}"
    rows = [["schedule", "bubble", "held", "step", "memory", ""], *[_order(order) for order in found.orders]]
    legend = "held: microbatches of a stage whose activations are kept at once. Bubbles are those of equally long "
    legend += "forwards, backwards and weight gradients. `for export`: other frameworks run it, our program does not."
    return [*paragraph(head, width), *columns(rows, width, right=range(1, 5)), *paragraph(legend, width, indent="  ")]


def _order(order: Order) -> list[str]:
    name = f"{order.name} x{order.repeats}" if order.repeats > 1 else order.name
    if order.illegal:
        return [name, "", "", "", "", order.illegal]
    memory = format_bytes(order.total_bytes) if order.total_bytes is not None else "-"
    remark = "this plan's" if order.chosen else "" if order.executable else "for export"
    if SCHEDULES[order.name].parameter_copies > 1:
        remark += f", parameters of {SCHEDULES[order.name].parameter_copies} stages"
    return [name, f"{order.bubble:.1%}", significant(order.in_flight), format_seconds(order.step_s), memory, remark]


def _bottleneck(report: ExplainReport, width: int) -> list[str]:
    """The largest entry of the best known ledger, and all waiting for links."""
    name, share = report.bottleneck
    said = f"What limits it: {name}, {share:.0%} of the step ({report.time.source}): {_hint(report, name)}"
    waiting: dict[str, float] = {}
    for part in report.time.parts:
        axes = part.name.split()[1:2]
        if part.name.startswith("exposed ") and axes[0].split("+")[0] in report.plan.sizes:
            waiting[axes[0]] = waiting.get(axes[0], 0.0) + part.amount / report.time.value_s
    if waiting:
        largest = sorted(waiting, key=lambda axes: -waiting[axes])[:SHOWN_WAITS]
        each = ", ".join(f"{axes} {waiting[axes]:.0%}" for axes in largest)
        said += f" Waiting for links: {sum(waiting.values()):.0%} ({each})."
    return paragraph(said, width)


def _hint(report: ExplainReport, name: str) -> str:
    """What makes an entry of a time ledger shorter, in words."""
    fraction = report.anatomy.chip.fraction
    if name == "matmul":
        rate = f"{fraction:.0%} of the peak, as steps reach it" if fraction < 1 else "the peak of the data sheet"
        return f"estimated at {rate}; only fewer FLOPs or more chips shorten it."
    if name.startswith("exposed host"):
        return "devices wait for the link to their host's memory: less on the host shortens it."
    if name.startswith("exposed "):
        return "devices wait for links: a smaller axis, faster links or another axis shorten it."
    return HINTS.get(name, "see the ledger above.")


HINTS = {
    "attention": "the attention kernel, whose FLOPs grow with the square of the sequence.",
    "memory-bound": "passes that only read and write memory, the update of the optimizer's state among them.",
    "recompute": "done again to save memory: a policy that keeps more shortens it, where memory allows.",
    "pipeline bubble": "stages wait: more microbatches, or more chunks of layers a stage, shorten it.",
    "lookup": "reading the table of embeddings.",
}


def _notes(report: ExplainReport, width: int) -> list[str]:
    lines = []
    if report.uncovered:
        counts = ", ".join(f"{name} ({count})" for name, count in report.uncovered.items())
        lines += paragraph(f"Not counted: {counts}", width)
    for assumption in report.record.assumptions:
        lines += paragraph(f"Assumed: {assumption}", width)
    return lines
