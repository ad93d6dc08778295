"""The newest checkpoint's largest file, cut in half."""

from __future__ import annotations

import os

from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage, array_file
from jaxplan.run.drill.verdict import fallen_back

NAME = "truncated"
WHAT = "a file of the newest checkpoint cut in half"
SAFE = "found, moved away, the older checkpoint restored"


def run(stage: Stage) -> Outcome:
    order = stage.seeded(NAME)
    file = array_file(order, stage.late)
    os.truncate(file, file.stat().st_size // 2)
    return fallen_back(stage, NAME, WHAT, SAFE, stage.train(order))
