"""Every plan of a search that fits, in columns: the JSON that the Plan tab of TensorBoard sorts, filters and plots.

Schema `jaxplan.candidates/1`. Texts are written once and pointed to: `{"values": [...], "codes": [...]}`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxplan.plan.sharding import AXES
from jaxplan.report.search import proof_word
from jaxplan.search.bottlenecks import bottlenecks
from jaxplan.search.progress import Progress
from jaxplan.search.space import Space
from jaxplan.workload.table import Table

SCHEMA = "jaxplan.candidates/1"
MOST = 100_000          # a tab that holds more is slow, and nobody looks so far down
DIGITS = 4              # of the figures: they are estimates


def candidates_json(progress: Progress, table: Table, plans: Mapping[int, str]) -> dict[str, Any]:
    """The columns, fastest plan first; later tiers' figures replace the estimates of the plans that they proved.

    Args:
        plans: the plan file of each candidate that has one.
    """
    ranking, space = progress.ranking, progress.ranking.space
    kept = ranking.fits.copy()
    kept[list(plans)] = True
    rows = np.flatnonzero(kept)
    times = progress.times_s
    rows = rows[np.argsort(times[rows], kind="stable")]
    feasible, rows = len(rows), rows[:MOST]
    memory = ranking.total_bytes[rows] * progress.memory_ratio[rows]
    for i in np.flatnonzero(np.isin(rows, list(progress.proofs))):
        memory[i] = progress.memory_bytes(int(rows[i]))
    step, ratio = times[rows], progress.time_ratio[rows]
    peak = ranking.machine.devices * ranking.machine.device_flops_per_s(table.compute_dtype)
    flops = table.needed_flops(space.workload.room_factor)
    sizes = space.sizes[space.mesh[rows]]
    columns = {
        "mesh": _texts(space.mesh[rows].tolist(), lambda i: _mesh(space, i)),
        "remat": _texts(space.policy[rows].tolist(), lambda i: space.policies[i]),
        "options": _texts(_options(space, rows), lambda key: _option_words(space, key)),
        "microbatches": space.microbatches[rows].tolist(),
        "memory_bytes": [round(x) for x in memory.tolist()],
        "step_time_s": _figures(step),
        "low_s": _figures(np.minimum(ranking.low_s[rows] * ratio, step)),
        "high_s": _figures(np.maximum(ranking.high_s[rows] * ratio, step)),
        "mfu": _figures(flops / peak / step),
        "bottleneck": _texts(bottlenecks(ranking, rows), str),
        "proof": _texts([proof_word(progress.proofs.get(row, {})) for row in rows.tolist()], str),
        "plan": _texts([plans.get(row, "") for row in rows.tolist()], str),
        **{axis: sizes[:, i].tolist() for i, axis in enumerate(AXES)},
    }
    return {
        "schema": SCHEMA,
        "source": "estimated",
        "candidates": len(space),
        "feasible": feasible,
        "count": len(rows),
        "capacity_bytes": ranking.machine.device_hbm_bytes,
        "columns": columns,
    }


def _texts(keys: Sequence[Hashable], words: Any) -> dict[str, list]:
    """Each text once, and which of them each row has."""
    code: dict[Hashable, int] = {}
    codes = [code.setdefault(key, len(code)) for key in keys]
    return {"values": [words(key) for key in code], "codes": codes}


def _figures(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def _mesh(space: Space, index: int) -> str:
    sizes = zip(AXES, space.meshes[index], strict=True)
    return " ".join(f"{axis}={size}" for axis, size in sizes if size > 1) or "one device"


def _options(space: Space, rows: np.ndarray) -> list[tuple[int, ...]]:
    """What decides the words of a plan's options."""
    columns = [space.rules[rows], space.schedule[rows], space.repeats[rows]]
    shared = [space.size_of(axis)[rows] > 1 for axis in ("stage", "context", "tensor", "group")]
    return list(map(tuple, np.column_stack([*columns, *shared]).tolist()))


def _option_words(space: Space, key: tuple[int, ...]) -> str:
    rules, schedule, repeats, staged, context, *tensor = key
    found = space.rule_sets[rules]
    words = ["zero2" if found.zero2 else "zero1"] if found.zero1 else []
    words += [found.context] if context else []
    words += [f"{space.schedules[schedule]} x{repeats}" if repeats > 1 else space.schedules[schedule]] if staged else []
    words += ["offload"] if found.offload_optimizer else []
    words += ["whole-seq"] if any(tensor) and not found.sequence_sharding else []
    return " ".join(words)
