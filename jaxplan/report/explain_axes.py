"""The mesh axes of an explained plan as text: what each moves, over which links, why it lies there. Nothing is computed
here but shares and sums."""

from __future__ import annotations

from jaxplan.machine.links import Links
from jaxplan.report.columns import columns, paragraph
from jaxplan.report.explain import ExplainReport
from jaxplan.report.words import count_words, seconds_change
from jaxplan.search.axis_use import AxisUse, Trade
from jaxplan.units import GB, format_bytes, format_seconds

SMALL = 0.001       # of the step time: collectives that take less are summed up in one line
ALWAYS = 2          # collectives of an axis that are shown, however little they take


def axes_lines(report: ExplainReport, width: int) -> list[str]:
    """Every axis, and whether two of them would better trade places."""
    axes = report.anatomy.axes
    lines: list[str] = []
    for axis in axes:
        lines += [*_axis(report, axis, width), ""]
    if len(axes) < 2:
        return lines[:-1]
    return [*lines, *paragraph(_verdict(report), width)]


def host_lines(report: ExplainReport, width: int) -> list[str]:
    """What moves between a device and its host's memory."""
    rate = report.plan.machine.device_host_bytes_per_s
    rows = [
        [f"{moved.kind} of {moved.what}", format_bytes(moved.nbytes), format_seconds(moved.seconds),
         _exposed(moved.exposed_s, moved.seconds), "estimated"]
        for moved in report.anatomy.moved
        if not moved.axes
    ]
    if not rows or rate is None:
        return []
    return [f"Memory of the host, over a link of {rate / GB:.3g} GB/s a device", *columns(rows, width, right=(1, 2))]


def _verdict(report: ExplainReport) -> str:
    """Whether the chattiest axes have the fastest links, which is how a mesh is laid on a machine."""
    mine = report.anatomy.estimate.value_s
    trades = [(trade.step_s - mine, axis.name, trade.other) for axis in report.anatomy.axes for trade in axis.trades]
    change, one, other = min(trades)
    if change > -SMALL * mine:
        worst, one, other = max(trades)
        if worst < SMALL * mine:
            return "No two axes gain or lose by trading places: their links are alike (estimated)."
        return (
            "No two axes would make the step shorter by trading places; the worst trade is "
            f"{one} with {other}, {seconds_change(worst)} (estimated)."
        )
    return f"{one} and {other} would make the step shorter by trading places: {seconds_change(change)} (estimated)."


def _axis(report: ExplainReport, axis: AxisUse, width: int) -> list[str]:
    role = f", role {axis.role}" if axis.role != axis.name else ""
    head = f"Axis {axis.name}: {count_words(axis.size, 'device')}{role}, on {axis.links.medium} ({_rate(axis.links)})"
    lines = [*paragraph(head, width), *paragraph(f"shards {_shards(axis)}", width, indent="  ")]
    least = SMALL * report.estimated_time.value_s
    shown = [moved for i, moved in enumerate(axis.moved) if moved.seconds >= least or i < ALWAYS]
    rows = [
        [
            f"{moved.kind} of {moved.what}{_beside(moved.axes, axis)}",
            f"{moved.executions:,.0f} x",
            format_bytes(moved.nbytes),
            format_seconds(moved.seconds),
            _exposed(moved.exposed_s, moved.seconds),
            "estimated",
        ]
        for moved in shown
    ]
    rows += _compiled(report, axis, least)
    lines += columns(rows, width, right=(1, 2, 3))
    if rest := len(axis.moved) - len(shown):
        spent = sum(moved.seconds for moved in axis.moved) - sum(moved.seconds for moved in shown)
        lines.append(f"  and {count_words(rest, 'smaller one')}, {format_seconds(spent)} together (estimated)")
    return lines + _elsewhere(report, axis, width)


def _compiled(report: ExplainReport, axis: AxisUse, least: float) -> list[list[str]]:
    rows = []
    for entry in report.traffic_of(axis.name):
        if entry.seconds is None or entry.seconds >= least:
            took = "" if entry.seconds is None else format_seconds(entry.seconds)
            name = f"{entry.kind}{_beside(entry.axes, axis)}"
            rows.append([name, f"{entry.executions:,} x", format_bytes(entry.nbytes), took, "", "compiled"])
    return rows


def _rate(links: Links) -> str:
    reached = f", {links.fraction:.0%} of it reached" if links.fraction < 1 else ""
    return f"{links.bytes_per_s / GB:.3g} GB/s a device{reached}"


def _beside(axes: tuple[str, ...], axis: AxisUse) -> str:
    others = [other for other in axes if other != axis.name]
    return f", with {', '.join(others)}" if others else ""


def _exposed(exposed: float, seconds: float) -> str:
    if exposed <= SMALL * seconds:
        return "hidden"
    return "exposed" if exposed >= (1 - SMALL) * seconds else f"{exposed / seconds:.0%} exposed"


def _shards(axis: AxisUse) -> str:
    shards = axis.shards
    said = [f"{', '.join(shards.activations)} of activations"] if shards.activations else []
    if shards.weights:
        said.append(f"{', '.join(shards.weights)} of weights ({shards.weights_share:.0%} of their bytes)")
    if shards.optimizer and shards.optimizer != shards.weights:
        said.append(f"{', '.join(shards.optimizer)} of the optimizer's state ({shards.optimizer_share:.0%})")
    return "; ".join(said) or "nothing"


def _elsewhere(report: ExplainReport, axis: AxisUse, width: int) -> list[str]:
    """What the axis's traffic would take where the others lie, and what the step would then; equal ones in one line."""
    if not axis.trades:
        return []
    mine = report.anatomy.estimate.value_s
    alike: dict[tuple[str, str, str], list[Trade]] = {}
    for trade in axis.trades:
        key = trade.links.medium, format_seconds(trade.own_s), seconds_change(trade.step_s - mine)
        alike.setdefault(key, []).append(trade)
    rows = [["all its traffic", axis.links.medium, format_seconds(axis.own_s), "", "estimated"]]
    for (medium, own, _), trades in alike.items():
        change = trades[0].step_s - mine
        step = f"step {seconds_change(change)}" if abs(change) >= SMALL * mine else "step alike"
        places = ", ".join(trade.other for trade in trades)
        rows.append([f"in the place of {places}", medium, own, step, "estimated"])
    return columns(rows, width, right=(2,))
