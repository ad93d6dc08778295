"""Interleaved 1F1B: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2, as Megatron-LM's core runs it.

Microbatches go in groups of p: a group passes chunk 0 of a device, then chunk 1, and so on; backwards the chunks are
taken from the last. Device s runs 2(p - s - 1) + (v - 1)p forwards of chunks ahead (Megatron-LM,
megatron/core/pipeline_parallel/schedules.py, `num_warmup_microbatches`), then a forward and a backward in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.estimate.schedules.form import Cell, Form, Plans, Task, fill_and_drain, round_and_round


def _ahead(s: Any, p: Any, v: Any) -> Any:
    return 2 * (p - s - 1) + (v - 1) * p


def _held(s: Plans, p: Plans, m: Plans, v: Plans) -> Plans:
    """One chunk more than are ahead, 1/v of a microbatch each: p + (p - 1)/v on the first device, m at the most.

    The same as the factor 1 + (p - 1)/(p v) on 1F1B's p: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3.
    """
    return np.minimum(_ahead(s, p, v) + 1, m * v) / v


def _nth(kind: str, n: int, p: int, v: int) -> Task:
    """The n-th forward or backward of a chunk on a device."""
    group, within = divmod(n, p * v)
    chunk, place = divmod(within, p)
    return Task(kind, group * p + place, chunk if kind == "F" else v - 1 - chunk)


def _order(s: int, p: int, m: int, v: int) -> list[Cell]:
    ahead = min(_ahead(s, p, v), m * v)
    cells: list[Cell] = [(_nth("F", n, p, v),) for n in range(ahead)]
    for n in range(m * v):
        if n + ahead < m * v:
            cells.append((_nth("F", n + ahead, p, v),))
        cells.append((_nth("B", n, p, v),))
    return cells


INTERLEAVED = Form(
    idle=fill_and_drain,
    in_flight=_held,
    orders=lambda p, m, v: [_order(s, p, m, v) for s in range(p)],
    needs=round_and_round,
)
