"""kill -9 while a step runs."""

from __future__ import annotations

import time

from jaxplan.run.drill.orders import Came
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage
from jaxplan.run.drill.verdict import resumed

NAME = "kill-step"
WHAT = "kill -9 in a step"
SAFE = "resumes at the last save, replays at most one interval, every later step equal to the bit"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME)
    struck = stage.late + stage.every // 2 + 1
    before = stage.worker.train(order, SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == struck)
    time.sleep(_step_s(before) / 2)
    stage.worker.kill()
    since = time.monotonic()
    stage.worker.wait(SILENCE_S)
    came, lost_s = stage.resume(order, since, struck - 1)
    return resumed(stage, NAME, WHAT, SAFE, came, lost_s, _last(before), allowed=stage.every)


def _step_s(came: Came) -> float:
    """How long the last finished step took, from its beginning to its word."""
    ends = [e["at_s"] for e in came.every("step")]
    begins = [e["at_s"] for e in came.every("begin")]
    return ends[-1] - begins[len(ends) - 1] if ends else 0.0


def _last(came: Came) -> int:
    return max(came.losses, default=0)
