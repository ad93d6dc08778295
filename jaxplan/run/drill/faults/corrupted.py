"""One flipped bit in the newest checkpoint's arrays."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage, array_file
from jaxplan.run.drill.verdict import fallen_back

NAME = "corrupted"
WHAT = "one bit of the newest checkpoint's arrays flipped"
SAFE = "found, moved away, the older checkpoint restored"
PLACES = (1, 3, 5, 7)       # eighths of the file, each tried in a folder of its own


def run(stage: Stage) -> Outcome:
    found, harmless = [], 0
    for place in PLACES:
        outcome, same = _flipped(stage, place)
        if same:        # the file holds bytes that nothing reads
            harmless += 1
        else:
            found.append(outcome)
    if not found:
        return Outcome(NAME, WHAT, SAFE, f"{len(PLACES)} flips in bytes that nothing reads", None)
    wrong = [outcome for outcome in found if not outcome.passed]
    worst, verb = (wrong[0], "not found") if wrong else (found[-1], "found")
    said = f"{len(wrong or found)} of {len(PLACES)} flips {verb}"
    said += f", {harmless} in bytes that nothing reads" if harmless else ""
    return replace(worst, happened=f"{said}; {worst.happened}")


def _flipped(stage: Stage, place: int) -> tuple[Outcome, bool]:
    """What a flip did, and whether the newest state came back whole nevertheless."""
    order = stage.seeded(f"{NAME}-{place}")
    file = array_file(order, stage.late)
    raw = bytearray(file.read_bytes())
    raw[len(raw) * place // 8] ^= 1 << place
    file.write_bytes(bytes(raw))
    came = stage.train(order)
    same = came.resumed_at == stage.late and stage.restored_whole(came)
    return fallen_back(stage, NAME, WHAT, SAFE, came), same
