"""kill -9 while a checkpoint is written in the background."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage
from jaxplan.run.drill.verdict import resumed

NAME = "kill-save"
WHAT = "kill -9 in an asynchronous save"
SAFE = "resumes at the save before; the unfinished folder is passed over, and cleaned at the next save"
TRIES = 5           # a small checkpoint is on disk within milliseconds
UNFINISHED = "*.orbax-checkpoint-tmp*"


def run(stage: Stage) -> Outcome:
    struck = 3 * stage.every
    for attempt in range(TRIES):
        order = stage.seeded(f"{NAME}-{attempt}")
        before = stage.worker.train(order, SILENCE_S, lambda e: e["event"] == "saving" and e["step"] == struck)
        folder = Path(order.folder)
        while not list(folder.glob(UNFINISHED)) and not (folder / str(struck)).exists():
            time.sleep(0.0005)
        stage.worker.kill()
        since = time.monotonic()
        stage.worker.wait(SILENCE_S)
        left = [path.name for path in folder.glob(UNFINISHED)]
        if (folder / str(struck)).exists() or not left:
            stage.renew()
            continue
        came, lost_s = stage.resume(order, since, struck)     # it saves, too, and so cleans up
        found = resumed(stage, NAME, WHAT, SAFE, came, lost_s, max(before.losses), allowed=stage.every)
        still = [path.name for path in folder.glob(UNFINISHED) if path.name in left]
        if still:
            return replace(found, passed=False, happened=f"{found.happened}; {still[0]} still lies there")
        return replace(found, happened=f"{found.happened}; {left[0]} is cleaned")
    return Outcome(NAME, WHAT, SAFE, f"the save was on disk before the kill, {TRIES} times", None)
