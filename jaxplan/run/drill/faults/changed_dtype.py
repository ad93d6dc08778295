"""The program's parameters have another dtype than the checkpoint's."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import refused

NAME = "changed-dtype"
WHAT = "restored into parameters of another dtype"
SAFE = "refused with the arrays' names; done where it is asked for"


def run(stage: Stage) -> Outcome:
    if stage.program["own"]:
        return Outcome(NAME, WHAT, SAFE, "the program decides its own dtypes", None)
    dtype = "float32" if stage.program["parameter_dtype"] != "float32" else "bfloat16"
    order = stage.seeded(NAME, dtype=dtype)
    found = refused(stage, NAME, WHAT, SAFE, stage.train(order), f"cast to {dtype} without a word")
    if not found.passed:
        return found
    asked = stage.train(replace(order, cast=True))
    return found.and_said("cast=True takes it" if asked.done else f"cast=True fails: {asked.said}", asked.done)
