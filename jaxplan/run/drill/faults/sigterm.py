"""SIGTERM: the machine is taken away in a moment."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import GRACE_S, SILENCE_S, Stage
from jaxplan.run.drill.verdict import resumed

NAME = "sigterm"
WHAT = f"SIGTERM, {GRACE_S:.0f} s before the kill"
SAFE = "saves the step that it is in, ends within the grace time, resumes with nothing replayed"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME)
    struck = stage.late + stage.every // 2 + 1
    before = stage.worker.train(order, SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == struck)
    since = time.monotonic()
    stage.worker.kill(signal.SIGTERM)
    rest = stage.worker.listen(GRACE_S)
    ended_s = time.monotonic() - since
    saved = rest.first("preempted")
    last = max({**before.losses, **rest.losses}, default=0)
    came, lost_s = stage.resume(order, since, last)
    found = resumed(stage, NAME, WHAT, SAFE, came, lost_s, last, allowed=0)
    if saved is None:
        return replace(found, passed=False, happened=f"ended without a save; {found.happened}")
    return found.and_said(f"step {saved['step']} saved {ended_s:.2f} s after the signal")
