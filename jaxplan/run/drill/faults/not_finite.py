"""Parameters that become NaN between two saves."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage

NAME = "not-finite"
WHAT = "all parameters NaN after a step"
SAFE = "the NaN state is never saved; training goes back to the last good step, later steps equal to the bit"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME, poison_at=stage.late + 1)
    came = stage.train(order)
    back, failed = came.first("rolled_back"), came.first("save_failed")
    again = stage.train(replace(order, poison_at=0, last=stage.steps))
    if back is None or failed is None:
        saved = [e["step"] for e in came.every("saved") if e["step"] > stage.late]
        whole = "whole" if stage.restored_whole(again) else "NaN"
        return Outcome(NAME, WHAT, SAFE, f"steps {saved} saved as good; what is restored is {whole}", False)
    judged = stage.judge(came)
    reached = failed["step"]
    said = f"refused at step {reached}, back to {back['to']}, {judged.words}"
    passed = came.done and judged.exact and stage.restored_whole(again)
    return Outcome(NAME, WHAT, SAFE, said, passed, None, reached - back["to"])
