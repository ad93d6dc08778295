"""The checkpoint is restored by another version of jax."""

from __future__ import annotations

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage
from jaxplan.run.drill.worker import SilentError

NAME = "other-jax"
WHAT = "restored by another version of jax"
SAFE = "the same bits, the versions said, losses that differ by rounding only"


def run(stage: Stage) -> Outcome:
    if not stage.other_python:
        return Outcome(NAME, WHAT, SAFE, "no other version is given: --python /path/to/other/bin/python", None)
    order = stage.seeded(NAME)
    with stage.start(python=stage.other_python) as worker:
        try:
            came = worker.train(order, SILENCE_S)
        except SilentError as error:
            return Outcome(NAME, WHAT, SAFE, str(error), False)
    found = came.first("resumed")
    if found is None or not came.done:
        return Outcome(NAME, WHAT, SAFE, came.said, False)
    judged, whole = stage.judge(came), stage.restored_whole(came)
    attached = came.first("attached") or {}
    here, there = stage.attached["jax"], attached["jax"]
    near = judged.difference is not None and judged.difference <= stage.tolerance
    noted = here == there or any("jax" in note for note in found["notes"])
    said = f"jax {here} to {there}: {'the same bits' if whole else 'other bits'}, {'said' if noted else 'not said'}; "
    said += f"{judged.compared} losses within {judged.difference:.1e} (allowed {stage.tolerance:.0e})"
    return Outcome(NAME, WHAT, SAFE, said, whole and near and noted)
