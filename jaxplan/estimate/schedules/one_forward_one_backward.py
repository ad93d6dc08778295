"""1F1B: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush).

Device s runs p - s forwards ahead, and from then on a forward after each backward.
"""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.schedules.form import Cell, Form, Plans, Task, fill_and_drain, round_and_round


def warmed_up(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """The forwards ahead of the first backward, and so the microbatches held: min(p - s, m)."""
    return np.minimum(p - s, m) + 0 * v


def _order(s: int, p: int, m: int) -> list[Cell]:
    cells: list[Cell] = [(Task("F", i, 0),) for i in range(min(p - s, m))]
    for i in range(m):
        cells.append((Task("B", i, 0),))
        if i + p - s < m:
            cells.append((Task("F", i + p - s, 0),))
    return cells


ONE_FORWARD_ONE_BACKWARD = Form(
    idle=fill_and_drain,
    in_flight=warmed_up,
    orders=lambda p, m, v: [_order(s, p, m) for s in range(p)],
    needs=round_and_round,
)
