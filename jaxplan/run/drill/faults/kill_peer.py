"""kill -9 of one of two processes."""

from __future__ import annotations

import time

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage, joined
from jaxplan.run.drill.verdict import resumed
from jaxplan.run.drill.worker import SilentError, Worker

NAME = "kill-peer"
WHAT = "kill -9 of one of two processes"
SAFE = "the survivor ends by itself; both resume at the last save, every later step equal to the bit"
SURVIVOR_S = 60.0       # chosen: jax's heartbeat of 10 s here, and what its runtime takes to give up


def run(stage: Stage) -> Outcome:
    if stage.attached["devices"] % 2 or not stage.virtual:
        return Outcome(NAME, WHAT, SAFE, "two processes need an even number of virtual devices here", None)
    order = stage.order(NAME)
    struck = stage.late + stage.every // 2 + 1
    pair = stage.pair()
    try:
        pair[1].order(order)
        alone = pair[0].train(order, SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == struck)
        if not alone.losses:
            return Outcome(NAME, WHAT, SAFE, f"two processes do not train here: {alone.said}", None)
        pair[1].kill()
        since = time.monotonic()
        code = _ending(pair[0])
        ended_s = time.monotonic() - since
    finally:
        for worker in pair:
            worker.__exit__()
    if code is None:
        return Outcome(NAME, WHAT, SAFE, f"the survivor was still there after {SURVIVOR_S:.0f} s", False)
    again = stage.pair()
    try:
        again[1].order(order)
        came = again[0].train(order, SILENCE_S, lambda e: e["event"] == "step" and e["step"] >= struck - 1)
        lost_s = time.monotonic() - since
        rest = again[0].listen(SILENCE_S)
    finally:
        for worker in again:
            worker.__exit__()
    whole = joined(came, rest)
    # beside the pair's own first steps: two processes add up in another order than one
    found = resumed(stage, NAME, WHAT, SAFE, whole, lost_s, max(alone.losses), allowed=stage.every, beside=alone)
    apart = stage.judge(whole).difference
    near = apart is not None and apart <= stage.tolerance
    found = found.and_said(f"within {apart:.1e} of one process", near) if apart is not None else found
    return found.and_said(f"the survivor ended by itself after {ended_s:.1f} s (exit code {code})")


def _ending(worker: Worker) -> int | None:
    """The exit code of a process that should end by itself; None where it does not."""
    try:
        worker.listen(SURVIVOR_S)
    except SilentError:
        return None
    return worker.wait(SURVIVOR_S)
