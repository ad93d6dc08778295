"""`goodput` for a terminal or a pipe: the answer, where the time goes, what to improve, what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.goodput.badput import WASTED
from jaxplan.goodput.restart import OTHER
from jaxplan.goodput.sensitivity import Lever
from jaxplan.report.columns import INDENT, columns, paragraph
from jaxplan.report.goodput import GoodputReport
from jaxplan.report.words import count_words
from jaxplan.units import DAY_S, format_bytes, format_count, format_duration, significant

MEANT = {
    WASTED: "work and saves after the last durable save",
    OTHER: "detection, waiting for a node",
}


def goodput_lines(report: GoodputReport, width: int) -> Iterator[str]:
    """Everything, in the order in which it is read."""
    yield from header(report)
    yield ""
    yield from headline(report)
    yield from _intervals(report, width)
    yield from _ledger(report, width)
    yield from _levers(report, width)
    yield from _inputs(report, width)
    if report.assumptions:
        yield "\nAssumed"
        for text in report.assumptions:
            yield from paragraph(text, width, INDENT)


def header(report: GoodputReport) -> Iterator[str]:
    """The job, its failures, its saves, its restarts."""
    found = report.assessment
    asked, setting = found.question, found.setting
    failures = asked.failures
    chips = failures.nodes * asked.chips_per_node
    job = f"{count_words(failures.nodes, 'node')}, {count_words(chips, 'chip')}"
    yield f"Job        {', '.join(filter(None, (report.label, report.machine, job)))}"
    yield (
        f"Failures   one every {format_duration(failures.mtbf_s)}, {significant(failures.per_day)} a day: "
        f"{significant(failures.per_1000_node_days)} per 1,000 node-days"
    )
    size = f"{format_bytes(report.state_bytes)}, " if report.state_bytes else ""
    durable = f", durable {format_duration(setting.write_s)} later" if setting.write_s else ""
    yield f"Save       {asked.kind}: {size}training stops for {format_duration(setting.block_s)}{durable}"
    if found.local is not None:
        local = found.local
        yield (
            f"Local      training stops for {format_duration(local.block_s)}, "
            f"serves {local.share:.0%} of the failures, restart {format_duration(local.restart_s)}"
        )
    phases = ", ".join(f"{phase.name} {format_duration(phase.seconds)}" for phase in found.phases)
    wait = f"; mean wait for a node {format_duration(setting.wait_s)}" if setting.wait_s >= 1 else ""
    yield f"Restart    {format_duration(setting.restart_s)}: {phases or 'nothing'}{wait}"


def headline(report: GoodputReport) -> Iterator[str]:
    """How often to save, what share is useful, spares, days and money."""
    found = report.assessment
    steps = found.interval_steps
    often = format_duration(found.interval_s) + (f" ({count_words(steps, 'step')})" if steps else "")
    if found.local is not None:
        remote = format_duration(found.remote_interval_s)
        often += f" locally, every {count_words(found.pattern.every, 'save')} ({remote}) remotely"
    verb = "Saving" if found.question.interval_s is not None else "Save"
    yield f"{verb} every {often}: {found.goodput:.1%} of the time is useful work (estimated)"
    if found.remote_interval_s >= found.run_s:
        yield "  one save, at the end: the best interval is longer than the run"
    for one, days in zip(found.simulated, found.days, strict=True):
        name = "random failures" if one.law.shape == 1 else f"failures in bursts (Weibull, shape {one.law.shape:g})"
        spread = ""
        if days is not None:
            low, middle, high = map(format_duration, days)
            spread = f"; {middle}, 9 of 10 runs {low} to {high}"
        yield f"  simulated, {name}: {one.low:.2%} to {one.high:.2%} ({one.confidence:.0%} of {one.failures:,}){spread}"
    spares = found.spares
    yield (
        f"Spares     {count_words(spares.count, 'node')}: enough {spares.reached:.1%} of the time "
        f"({significant(spares.in_repair)} in repair on average, {format_duration(found.question.repair_s)} each)"
    )
    yield from _budget(report)


def _budget(report: GoodputReport) -> Iterator[str]:
    budget = report.assessment.budget
    if budget is None:
        return
    failures = report.assessment.expected_failures or 0.0
    yield (
        f"Length     {format_duration(budget.total_s)} for {format_count(budget.work.tokens)} tokens: "
        f"{budget.work.steps:,} steps of {format_duration(budget.work.step_s)} ({report.step_source}), "
        f"about {count_words(round(failures), 'failure')}"
    )
    hours = f"{format_count(budget.chip_hours)} chip-hours with spares"
    if budget.money is None:
        yield f"Money      {hours}; --price-per-chip-hour says what they cost"
    else:
        yield f"Money      {format_count(budget.money)}: {hours} at {budget.price_per_chip_hour:g}"


def _intervals(report: GoodputReport, width: int) -> Iterator[str]:
    yield "\nInterval by formula"
    rows = [("formula", "interval", "goodput", "", "")]
    for answer in report.assessment.answers:
        rows.append(
            (answer.name, format_duration(answer.interval_s), f"{answer.goodput:.2%}", answer.why_not, answer.source)
        )
    yield from columns(rows, width, right=(1, 2))


def _ledger(report: GoodputReport, width: int) -> Iterator[str]:
    whole = "the run" if report.assessment.budget is not None else "a day"
    yield f"\nWhere {whole} goes"
    rows = [
        (entry.name, f"{entry.share:.2%}", format_duration(entry.share * report.total_s), MEANT.get(entry.name, ""))
        for entry in report.ledger
        if entry.share > 0
    ]
    rows.append(("total", "100.00%", format_duration(report.total_s), ""))
    yield from columns(rows, width, right=(1, 2))


def _levers(report: GoodputReport, width: int) -> Iterator[str]:
    yield "\nWhat to improve first (halved, and the interval chosen again)"
    rows = [("", "now", "goodput", "more work", "elasticity")]
    for lever in report.assessment.levers:
        cells = (f"{lever.halved_goodput:.2%}", f"+{lever.gain:.2%}", f"{lever.elasticity:.4f}")
        rows.append((lever.name, _lever_value(lever), *cells))
    yield from columns(rows, width, right=(1, 2, 3, 4))


def _lever_value(lever: Lever) -> str:
    if lever.name == "failure rate":
        return f"{significant(lever.value * DAY_S)} a day"
    return format_duration(lever.value)


def _inputs(report: GoodputReport, width: int) -> Iterator[str]:
    yield "\nWhat went in"
    rows = []
    for given in report.inputs:
        flag = f" ({given.flag})" if given.flag else ""
        rows.append((given.name, _value(given.value, given.unit), f"{given.source}{flag}"))
    yield from columns(rows, width, right=(1,))


def _value(value: float, unit: str) -> str:
    shown = {"s": format_duration, "B": format_bytes, "B/s": lambda rate: f"{format_bytes(rate)}/s"}
    if unit in shown:
        return shown[unit](value)
    return f"{value:,.0f}" if value == int(value) else significant(value)
