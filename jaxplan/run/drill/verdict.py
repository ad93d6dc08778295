"""The verdicts that several faults share: resumed, fallen back, refused. No JAX."""

from __future__ import annotations

from jaxplan.run.drill.orders import Came, short
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage

MOST_CHARACTERS = 170       # of a refusal, in a table


def resumed(
    stage: Stage,
    name: str,
    what: str,
    safe: str,
    came: Came,
    lost_s: float | None,
    reached: int,
    allowed: int,
    beside: Came | None = None,
) -> Outcome:
    """Training that ended and was started again.

    Args:
        reached: the last step that was done before. allowed: steps that may be done twice.
        beside: a training to compare with instead of the undisturbed one.
    """
    at = came.resumed_at
    if not came.done:
        return Outcome(name, what, safe, f"not resumed: {came.said}", False, lost_s)
    replayed = reached - (at or 0)
    judged = stage.judge(came, beside)
    whole = beside is not None or stage.restored_whole(came)
    said = f"resumed at step {at} of {reached}, {judged.words}"
    said += "" if whole else "; the restored state is another one than was saved"
    passed = at is not None and replayed <= allowed and judged.exact and whole
    return Outcome(name, what, safe, said, passed, lost_s, max(0, replayed))


def fallen_back(stage: Stage, name: str, what: str, safe: str, came: Came, expected: int | None = None) -> Outcome:
    """Training on a damaged folder: the newest whole step (`expected`, else the first save) must come back."""
    wanted = stage.early if expected is None else expected
    at = came.resumed_at
    if at is None or not came.done:
        said = came.said or f"ended with exit code {came.exit_code}"
        return Outcome(name, what, safe, f"not resumed: {said}", False)
    judged, whole = stage.judge(came), stage.restored_whole(came)
    passed_over = (came.first("resumed") or {}).get("passed_over", [])
    why = f" (step {passed_over[0][0]}: {passed_over[0][1]})" if passed_over else ""
    said = f"restored step {at}{why}" if whole else f"restored step {at} with other bits than were saved"
    lost_s = _until(came, stage.late)
    return Outcome(
        name, what, safe, f"{said}, {judged.words}", whole and judged.exact and at == wanted, lost_s, stage.late - at
    )


def _until(came: Came, step: int) -> float | None:
    """Seconds until that step was there again: restored, or done."""
    found = came.first("resumed")
    if found is None or found["step"] >= step:
        return None if found is None else found["seconds"]
    done = [e for e in came.every("step") if e["step"] == step]
    return done[0]["at_s"] if done else None


def refused(stage: Stage, name: str, what: str, safe: str, came: Came, otherwise: str) -> Outcome:
    """A program that does not go with the checkpoint: refused before a step is taken."""
    del stage
    found = came.first("refused")
    if found is None:
        return Outcome(name, what, safe, otherwise if came.done else f"not refused, but failed: {came.said}", False)
    return Outcome(name, what, safe, f"refused: {short(came.said, MOST_CHARACTERS)}", True)
