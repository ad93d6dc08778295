"""Steps that differ much from each other: one figure does not speak for them.

Applies where the slowest tenth of at least five steps takes a fifth longer than the median.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxplan.profile.findings.finding import Compared, Finding
from jaxplan.units import format_seconds

FEWEST, SPREAD = 5, 1.2     # chosen


def find(compared: Compared) -> Iterator[Finding]:
    steps = np.array(compared.measured.steps)
    if steps.size < FEWEST:
        return
    median, slow = compared.measured.step_s, float(np.quantile(steps, 0.9))
    if slow > SPREAD * median:
        worst = int(steps.argmax())
        yield Finding(
            "steps are unsteady",
            f"one step in ten takes {format_seconds(slow)} or more, the median {format_seconds(median)}; the slowest "
            f"({format_seconds(float(steps.max()))}) is number {compared.measured.trace.steps[worst]}",
            "leave warm-up and compilation out of the profile; if it goes on, look for checkpoints, evaluation or "
            "other users of the machine in the slow steps",
            slow - median,
        )
