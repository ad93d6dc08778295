"""A file of the newest checkpoint that is gone."""

from __future__ import annotations

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage, array_file
from jaxplan.run.drill.verdict import fallen_back

NAME = "missing"
WHAT = "a file of the newest checkpoint deleted"
SAFE = "found, moved away, the older checkpoint restored"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME)
    array_file(order, stage.late).unlink()
    return fallen_back(stage, NAME, WHAT, SAFE, stage.train(order))
