"""The program has another optimizer than the checkpoint."""

from __future__ import annotations

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import refused

NAME = "changed-optimizer"
WHAT = "restored into another optimizer's state"
SAFE = "refused, the first differing arrays named"


def run(stage: Stage) -> Outcome:
    before = stage.program["optimizer"]
    other = "lion" if before != "lion" else "adamw"
    came = stage.train(stage.seeded(NAME, optimizer=other))
    return refused(stage, NAME, WHAT, SAFE, came, f"{other}'s state filled from {before}'s")
