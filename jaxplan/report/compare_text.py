"""A profile beside its prediction, as lines of text. Nothing is computed here but shares and rates."""

from __future__ import annotations

from jaxplan.profile.compare import Collective, Comparison
from jaxplan.report.columns import columns, paragraph
from jaxplan.report.words import count_words, decision_words, seconds_change, sign
from jaxplan.units import GB, format_bytes, format_seconds, significant

SHOWN_OPERATIONS, SHOWN_COLLECTIVES, SHOWN_DEVICES = 8, 10, 3
SHOWN_PARTS = 3     # of a path, whose begin is mostly the same
UNKNOWN = 0.01      # share of the operations' time that is worth a word


def compare_lines(found: Comparison, width: int) -> list[str]:
    """The whole text, no line wider than that where words can be folded."""
    lines = _head(found, width)
    for section in (_ledger, _findings, _collectives, _operations, _devices, _notes):
        said = section(found, width)
        lines += ["", *said] if said else []
    return lines


def _head(found: Comparison, width: int) -> list[str]:
    measured, trace = found.measured, found.measured.trace
    hosts = count_words(len(trace.hosts), "host")
    devices, steps = count_words(len(trace.devices), "device"), count_words(len(measured.steps), "step")
    ran = f"{measured.platform}, {devices} of {hosts}, {measured.program or 'unnamed'}"
    lines = {"Profile": f"{ran}, {steps} told apart by {trace.steps_from}"}
    if found.record is not None:
        lines["Plan"] = decision_words(found.record.plan)
    said = f"{format_seconds(measured.step_s)} measured (median)"
    for one in reversed(found.predicted):
        change = measured.step_s / one.step_s - 1 if one.step_s else 0.0
        said += f"; {format_seconds(one.step_s)} {one.tier}, the measured step is {_longer(change)}"
    if found.expected_s:
        said += f"; {format_seconds(found.expected_s)} expected, the measured step is "
        said += _longer(measured.step_s / found.expected_s - 1)
    lines["Step"] = said
    return [line for name, text in lines.items() for line in paragraph(f"{name:<9}{text}", width)]


def _longer(change: float) -> str:
    return f"{abs(change):.1%} {'longer' if change >= 0 else 'shorter'}"


def _ledger(found: Comparison, width: int) -> list[str]:
    tiers = [one.tier for one in found.predicted]
    head = ["Time of a step", *tiers, "measured", "", *(["difference"] if tiers else [])]
    rows = [head]
    for row in found.rows:
        cells = [f"  {row.name}", *[_seconds(row.predicted_s(tier)) for tier in tiers], _seconds(row.measured_s)]
        cells.append(f"{(row.measured_s or 0.0) / found.measured.step_s:.1%}")
        rows.append([*cells, *([seconds_change(found.difference_s(row))] if tiers else [])])
    total = ["  together", *[format_seconds(one.step_s) for one in found.predicted]]
    total += [format_seconds(found.measured.step_s), "100%"]
    rows.append([*total, *([seconds_change(found.gap_s or 0.0)] if tiers else [])])
    return columns(rows, width, right=range(1, len(head)), indent="")


def _seconds(value: float | None) -> str:
    return format_seconds(value) if value else "-"


def _findings(found: Comparison, width: int) -> list[str]:
    if not found.findings:
        return []
    lines = ["What explains it:" if found.predicted else "What stands out:"]
    for number, one in enumerate(found.findings, start=1):
        lines += paragraph(f"{number}. {one.title} ({format_seconds(one.seconds)}): {one.detail}.", width, indent="  ")
        lines += paragraph(f"try: {one.suggestion}.", width, indent="     ")
    return lines


def _collectives(found: Comparison, width: int) -> list[str]:
    shown = [one for one in found.collectives if one.measured is not None or one.predicted(found.tier) is not None]
    if not shown:
        return []
    tier = [found.tier] if found.tier else []
    head = ["Collectives", "over", "times", "bytes", *tier, "measured", "exposed", "GB/s"]
    rows = [head]
    for one in shown[:SHOWN_COLLECTIVES]:
        rows.append(_collective(one, found.tier))
    lines = columns(rows, width, right=range(2, len(head)))
    if len(shown) > SHOWN_COLLECTIVES:
        lines.append(f"  and {len(shown) - SHOWN_COLLECTIVES} more (--json)")
    return [*lines, "  measured from begin to end, waiting for late devices included"]


def _collective(one: Collective, tier: str) -> list[str]:
    predicted, measured = one.predicted(tier), one.measured
    told = [_seconds(None if predicted is None else predicted.seconds)] if tier else []
    nbytes = measured.nbytes if measured is not None and measured.nbytes else predicted.nbytes if predicted else 0.0
    cells = [one.kind, "+".join(one.axes) or "?"]
    if measured is None:
        return [*cells, "-", format_bytes(nbytes), *told, "-", "-", "-"]
    rate = significant(nbytes / measured.seconds / GB) if nbytes and measured.seconds else "-"
    times = f"{measured.executions:,.3g}"
    moved = format_bytes(nbytes) if nbytes else "-"
    return [*cells, times, moved, *told, format_seconds(measured.seconds), format_seconds(measured.exposed_s), rate]


def _operations(found: Comparison, width: int) -> list[str]:
    operations = found.measured.operations
    rows = [["Longest operations", "kind", "times", "a step", "", ""]]
    for one in operations[:SHOWN_OPERATIONS]:
        share = one.seconds / found.measured.step_s
        kind = f"{one.kind} {'+'.join(one.axes)}".strip()
        where = "/".join((one.source or one.op_name).split("/")[-SHOWN_PARTS:])
        rows.append([one.name, kind, f"{one.executions:,.3g}", format_seconds(one.seconds), f"{share:.1%}", where])
    lines = columns(rows, width, right=(2, 3, 4))
    if found.measured.unknown > UNKNOWN:
        said = f"{found.measured.unknown:.0%} of the operations' time is of operations that the HLO does not know"
        lines += paragraph(f"{said}: they are told apart by name", width, indent="  ")
    return lines


def _devices(found: Comparison, width: int) -> list[str]:
    devices = sorted(found.measured.devices, key=lambda device: -device.behind_s)[:SHOWN_DEVICES]
    if len(found.measured.devices) < 2:
        return []
    rows = [["Slowest devices", "works", "waits for others", "idle", "behind the median"]]
    for one in devices:
        figures = [format_seconds(one.work_s), format_seconds(one.exposed_s), format_seconds(one.idle_s)]
        behind = sign(one.behind_s) + format_seconds(abs(one.behind_s))
        rows.append([f"{one.host} {one.ordinal}", *figures, behind])
    return columns(rows, width, right=range(1, 5))


def _notes(found: Comparison, width: int) -> list[str]:
    return [line for note in found.notes for line in paragraph(f"note: {note}", width)]
