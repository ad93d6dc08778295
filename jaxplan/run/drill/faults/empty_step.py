"""An empty folder that is named like a newer step, as an interrupted copy leaves it."""

from __future__ import annotations

from pathlib import Path

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.verdict import fallen_back

NAME = "empty-step"
WHAT = "an empty folder named like the next step"
SAFE = "passed over, moved away, the newest whole checkpoint restored; that step can be saved later"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME)
    (Path(order.folder) / str(3 * stage.every)).mkdir()
    return fallen_back(stage, NAME, WHAT, SAFE, stage.train(order), expected=stage.late)
