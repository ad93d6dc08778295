"""ZB-H1: Qi et al. 2023, arXiv:2401.10241, section 2.1 and table 2 (ZB1P in later papers).

1F1B whose backward pass is split: the gradient of the input goes on at once, the gradient of the weights follows s
microbatches later on device s, so that every device holds p microbatches and the waits at the end are filled.
"""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.schedules.form import Cell, Form, Plans, Task, Times, round_and_round


def _idle(p: Plans, m: Plans, v: Plans, times: Times) -> Plans:
    """(p - 1)(F + B - W), table 2, which has W <= F and W <= B: a longer W fills no more than one of those."""
    filled = np.minimum(times.weight, np.minimum(times.forward, times.backward))
    return (p - 1) * (times.forward + times.backward - filled)


def _held(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """p on every device (table 2: 1F1B's p M_B), counting a microbatch until its weight gradient is done."""
    return np.minimum(p, m) + 0 * (s + v)


def _order(s: int, p: int, m: int) -> list[Cell]:
    cells: list[Cell] = [(Task("F", i, 0),) for i in range(min(p - s, m))]
    for i in range(m):
        cells.append((Task("B", i, 0),))
        if i >= s:
            cells.append((Task("W", i - s, 0),))
        if i + p - s < m:
            cells.append((Task("F", i + p - s, 0),))
    return cells + [(Task("W", i, 0),) for i in range(max(m - s, 0), m)]


ZERO_BUBBLE = Form(
    idle=_idle,
    in_flight=_held,
    orders=lambda p, m, v: [_order(s, p, m) for s in range(p)],
    needs=round_and_round,
)
