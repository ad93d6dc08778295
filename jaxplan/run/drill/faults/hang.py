"""A step that never ends."""

from __future__ import annotations

import time
from dataclasses import replace

from jaxplan.checkpoint.watchdog import RESTART
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage
from jaxplan.run.drill.verdict import resumed
from jaxplan.run.drill.worker import SilentError

NAME = "hang"
WHAT = "a step that hangs"
SAFE = "every stack is dumped, the process ends with the code that asks for a restart, and resumes"
WATCHDOG_S = 6.0        # chosen: longer than any step or save of the drill, on a busy machine too
PATIENCE = 3        # times the watchdog's limit


def run(stage: Stage) -> Outcome:
    struck = stage.late + stage.every // 2 + 1
    order = stage.seeded(NAME, hang_at=struck, watchdog_s=WATCHDOG_S)
    since = time.monotonic()
    try:
        before = stage.worker.train(order, SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == struck)
        since = time.monotonic()
        rest = stage.worker.listen(PATIENCE * WATCHDOG_S)
    except SilentError:
        stage.renew()
        return Outcome(NAME, WHAT, SAFE, f"hung for {PATIENCE * WATCHDOG_S:.0f} s and would for ever", False)
    stage.renew()
    again = replace(order, hang_at=0)
    came, lost_s = stage.resume(again, since, struck - 1)
    found = resumed(stage, NAME, WHAT, SAFE, came, lost_s, max(before.losses, default=0), allowed=stage.every)
    dumped = "threading" in rest.stderr and "trainer.py" in rest.stderr
    said = f"exit code {rest.exit_code}, stacks {'dumped' if dumped else 'not dumped'}"
    return found.and_said(said, rest.exit_code == RESTART and dumped)
