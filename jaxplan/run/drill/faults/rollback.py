"""Training goes back to an older step, and saves the later ones again."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage

NAME = "rollback"
WHAT = "back to an older step, and on from there"
SAFE = "later steps are moved away, saved again, and the new ones are what is restored"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME, roll_back_to=stage.early, last=stage.late, shards=2)
    came = stage.train(order)
    again = stage.train(replace(order, roll_back_to=0, last=stage.steps))
    failed = came.first("save_failed")
    if came.resumed_at != stage.early or failed is not None or not came.done:
        reason = failed["message"] if failed is not None else came.said
        return Outcome(NAME, WHAT, SAFE, f"step {stage.late} is not saved again: {reason}", False)
    # the new save knows two readers, the old one knew one: which of the two is restored shows there
    samples = (again.first("resumed") or {}).get("shards")
    new = again.resumed_at == stage.late and samples == 2
    said = f"step {stage.late} saved again; what is restored is the {'new' if new else 'old'} one"
    return Outcome(NAME, WHAT, SAFE, said, new and stage.restored_whole(again), None, stage.late - stage.early)
