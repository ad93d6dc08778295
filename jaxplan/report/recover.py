"""What the recovery drill found, as data, as a table and as lines. Nothing is computed but counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.report.finite import finite
from jaxplan.report.grid import Grid
from jaxplan.report.words import count_words
from jaxplan.run.drill.outcome import Outcome
from jaxplan.units import format_seconds

SCHEMA = "jaxplan.recover/1"
VERDICTS = {True: "pass", False: "FAIL", None: "-"}
STORES = {"jaxplan": "jaxplan.checkpoint", "orbax": "orbax alone"}

LOST = (
    "Time lost is measured, from the fault until the step that was reached before is done again: detection, a new "
    "process, JAX's start, a compile from its cache, the restore and the replay."
)


def recover_json(facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Schema `jaxplan.recover/1`: `passed` is false where a fault failed; one that could not be played is null."""
    return finite(
        {
            "schema": SCHEMA,
            **facts,
            "passed": passed(outcomes),
            "faults": [outcome.to_json() for outcome in outcomes],
        }
    )


def passed(outcomes: Sequence[Outcome]) -> bool:
    return not any(outcome.passed is False for outcome in outcomes)


def head_lines(facts: Mapping[str, Any]) -> list[str]:
    """What is drilled, and where."""
    ran = facts["ran_on"]
    lines = [
        f"Plan        {facts['label']}",
        f"Runs on     {ran['devices']} x {ran['device_kind']} ({ran['platform']}), jax {ran['jax']}, as {ran['label']}",
        f"Saved by    {STORES[facts['store']]}, in the background, every {facts['every']} of {facts['steps']} steps",
    ]
    return [*lines, *(f"Scaled      {words}" for words in ran["scaled"])]


def grid(outcomes: Sequence[Outcome]) -> Grid:
    """One row a fault."""
    head = ("fault", "", "time lost", "replayed", "what happened", "a safe system")
    body = tuple(
        (
            outcome.what,
            VERDICTS[outcome.passed],
            "" if outcome.lost_s is None else format_seconds(outcome.lost_s),
            "" if outcome.replayed is None else str(outcome.replayed),
            outcome.happened,
            outcome.safe,
        )
        for outcome in outcomes
    )
    return Grid("Recovery drill", head, body, (2, 3), optional=(5,))


def outcome_line(outcome: Outcome) -> str:
    """One fault as it is judged, for those who wait."""
    return f"{VERDICTS[outcome.passed]:<5} {outcome.fault:<18} {outcome.happened}"


def last_lines(outcomes: Sequence[Outcome], seconds: float) -> list[str]:
    """How many passed, what failed, what was not played; how time lost is counted."""
    failed = [outcome.fault for outcome in outcomes if outcome.passed is False]
    skipped = [outcome.fault for outcome in outcomes if outcome.passed is None]
    good = sum(outcome.passed is True for outcome in outcomes)
    said = f"{good} of {count_words(len(outcomes), 'fault')} passed in {format_seconds(seconds)}"
    said += f"; failed: {', '.join(failed)}" if failed else ""
    said += f"; not played: {', '.join(skipped)}" if skipped else ""
    return [said, LOST]
