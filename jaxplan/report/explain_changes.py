"""What other decisions would change of an explained plan, as text: neighbours, why not. Nothing is computed here but
shares and sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxplan.plan.plan import Plan
from jaxplan.report.columns import columns, paragraph
from jaxplan.report.explain import ExplainReport
from jaxplan.report.words import bytes_change, decision_words, seconds_change, sign
from jaxplan.search.neighbours import Neighbour
from jaxplan.search.rank import MEMORY_MARGIN
from jaxplan.search.why_not import WhyNot
from jaxplan.units import format_bytes, format_seconds

SHOWN = 6       # entries of two ledgers that differ

DECISION_WORDS: Mapping[str, Callable[[Plan], str]] = {
    "remat": lambda plan: f"{plan.remat} remat",
    "microbatches": lambda plan: f"{plan.microbatches} micro",
    "zero": lambda plan: "zero2" if plan.zero2 else "zero1" if plan.zero1 else "no zero1",
    "sequence_sharding": lambda plan: "sequence sharding" if plan.sequence_sharding else "whole sequences",
    "context_attention": lambda plan: plan.context_attention,
    "offload_optimizer": lambda plan: f"optimizer on the {'host' if plan.offload_optimizer else 'device'}",
    "loss_chunks": lambda plan: f"{plan.loss_chunks} chunks of the loss",
    "schedule": lambda plan: plan.schedule if plan.repeats == 1 else f"{plan.schedule} x{plan.repeats}",
}


def changes_lines(report: ExplainReport, width: int) -> list[str]:
    """The best plans one decision away, and what each decision is worth."""
    best, worth = report.best(), report.worth()
    if not worth:
        return []
    if best:
        rows = [[f"{i + 1}.", *_change(report, found)] for i, found in enumerate(best)]
        lines = ["What one other decision would change: the fastest that fit (estimated)"]
        lines += columns(rows, width, right=(2, 3))
    else:
        smallest = min(report.neighbours, key=lambda found: found.total_bytes)
        lines = paragraph("No plan that differs by one decision fits (estimated); the smallest:", width)
        lines += columns([_change(report, smallest)], width, right=(1, 2))
    lines += ["What each decision is worth: its best alternative (estimated)"]
    return lines + columns([_change(report, found) for found in worth], width, right=(1, 2))


def _change(report: ExplainReport, found: Neighbour) -> list[str]:
    mine = report.anatomy.estimate
    change = found.value_s - mine.value_s
    memory = bytes_change(found.total_bytes - mine.total_bytes)
    seconds = f"{seconds_change(change)} ({_share(change, mine.value_s)})"
    return [_words(report.plan, found), seconds, memory, "" if found.fits else "does not fit"]


def _share(change: float, whole: float) -> str:
    return f"{sign(change)}{abs(change) / whole:.1%}"


def _words(plan: Plan, found: Neighbour) -> str:
    """`full remat instead of mlp remat`; of a mesh what it makes change as well."""

    def instead(decision: str) -> str:
        words = DECISION_WORDS[decision]
        return f"{words(found.plan)} instead of {words(plan)}"

    if found.decision == "mesh":
        return ", ".join([f"mesh {found.plan.label}", *map(instead, found.also)])
    return instead(found.decision)


def why_not_lines(report: ExplainReport, width: int) -> list[str]:
    """The answer to `--why-not`."""
    found = report.why_not
    if found is None:
        return []
    lines = paragraph(f"Why not {found.asked.text}?", width)
    if found.plan is None or found.estimate is None:
        return [*lines, *paragraph(f"illegal: {found.reason}", width, indent="  ")]
    which = f"the best of {found.considered:,} plans that have it: " if found.considered > 1 else ""
    lines += paragraph(f"{which}{decision_words(found.plan)}", width, indent="  ")
    lines += paragraph(_verdict(report, found, found.estimate.total_bytes), width, indent="  ")
    lines += [line for said in _runner_ups(report, found.plan) for line in paragraph(said, width, indent="  ")]
    for changes, words in ((found.time_s, seconds_change), (found.memory_bytes, bytes_change)):
        lines += _differences(changes or {}, words, width)
    return lines


def _verdict(report: ExplainReport, found: WhyNot, total_bytes: float) -> str:
    mine, change = report.anatomy.estimate.value_s, found.slower_s
    share = _share(change, mine)
    if found.verdict == "the same plan":
        return "it is this plan"
    if found.verdict == "as fast":
        return "as fast, as far as estimates can tell"
    if found.verdict == "slower":
        return f"slower by {format_seconds(change)} ({share}, estimated)"
    if found.verdict == "faster":
        return f"faster by {format_seconds(-change)} ({share}, estimated): only a compile of both can decide"
    return (
        f"does not fit: {format_bytes(total_bytes)} of {format_bytes(report.capacity_bytes)} a device, "
        f"{format_bytes(found.over_bytes)} too much with the margin of {MEMORY_MARGIN:.0%} that estimates get, most of "
        f"it {found.binding}; its step {seconds_change(change)} ({share}, estimated)"
    )


def _runner_ups(report: ExplainReport, plan: Plan) -> list[str]:
    """What the search of the plan file said of that plan."""
    search = report.record.search
    said = []
    for other in search.runner_ups if search is not None else ():
        if (other.label, other.remat, other.microbatches) == (plan.label, plan.remat, plan.microbatches):
            note = f"; {other.note}" if other.note else ""
            took = f"{format_seconds(other.step_time_s)} ({other.source}{note})"
            said.append(f"its search had a plan of that mesh, remat and microbatches: {took}")
    return said


def _differences(changes: Mapping[str, float], words: Callable[[float], str], width: int) -> list[str]:
    """The entries in which two ledgers differ, and their sum."""
    if not changes:
        return []
    largest = list(changes.items())[:SHOWN]
    rows = [[name, words(value)] for name, value in largest]
    if more := len(changes) - len(largest):
        rows.append([f"{more} more", words(sum(changes.values()) - sum(value for _, value in largest))])
    rows.append(["together", words(sum(changes.values()))])
    return columns(rows, width, right=(1,), indent="    ")
