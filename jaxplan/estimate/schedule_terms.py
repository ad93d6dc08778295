"""What the pipelines of many plans add to the variables of their costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxplan.estimate.pipeline import bubble_fraction, in_flight
from jaxplan.estimate.terms import Pipeline
from jaxplan.plan.schedule import schedule


def pipelines(
    names: Sequence[str], which: np.ndarray, stages: np.ndarray, microbatches: np.ndarray, repeats: np.ndarray
) -> Pipeline:
    """The bubble, the messages between stages, and the microbatches in flight of every plan.

    Args:
        names: schedules.
        which: int [plans], index into `names`.
        stages, microbatches, repeats: int [plans]; plans with one stage get what none adds.
    """
    found = Pipeline.none(len(which))
    for i, name in enumerate(names):
        rows = np.flatnonzero((which == i) & (stages > 1))
        if not len(rows):
            continue
        counts = stages[rows], microbatches[rows], repeats[rows]
        found.bubble[rows] = 1 + bubble_fraction(name, *counts)
        # our own program is a scan whose every tick sends; elsewhere a message follows each microbatch of each chunk
        idle_ticks = stages[rows] - 1 if schedule(name).executable else 0
        found.ticks[rows] = microbatches[rows] * repeats[rows] + idle_ticks
        found.in_flight[rows] = in_flight(name, *counts)
    return found
