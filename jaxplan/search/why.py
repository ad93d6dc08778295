"""Why a plan stands where it stands: the plain plan to compare with, the nearest misses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jaxplan.estimate.ledger import Estimate
from jaxplan.search.rank import Ranking
from jaxplan.workload.shape import Workload


def baseline(ranking: Ranking) -> int | None:
    """Plain FSDP over all devices: what most people would start with, if it fits.

    With full rematerialization, where the program leaves that open.
    """
    space = ranking.space
    fsdp = space.size_of("fsdp") == ranking.machine.devices
    full = space.policies.index("full") if "full" in space.policies else 0
    plain = fsdp & (space.policy == full) & ranking.fits
    rows = np.flatnonzero(plain)
    return int(rows[ranking.value_s[rows].argmin()]) if len(rows) else None


def misses(ranking: Ranking, count: int = 3) -> list[int]:
    """The candidates that miss by least, one for each mesh."""
    out, seen = [], set()
    for row in map(int, ranking.nearest_misses(len(ranking.space))):
        if int(ranking.space.mesh[row]) not in seen:
            seen.add(int(ranking.space.mesh[row]))
            out.append(row)
        if len(out) == count:
            break
    return out


def binding_term(estimate: Estimate) -> str:
    """The largest part of the memory ledger."""
    return max(estimate.memory_bytes, key=lambda part: estimate.memory_bytes[part])


@dataclass(frozen=True)
class Change:
    """A change that would make the workload fit, in words, with the flags that make it."""

    words: str
    flags: str
    total_bytes: float


def smaller_workloads(workload: Workload) -> list[tuple[str, str, Workload]]:
    """The changes to a workload that save memory, smallest first: what, the flags, and the workload."""
    out = []
    if workload.optimizer == "adamw":
        out.append(("Adafactor in place of AdamW", "--optimizer adafactor", replace(workload, optimizer="adafactor")))
    if workload.seq >= 2048:
        half = replace(workload, seq=workload.seq // 2, batch=workload.batch * 2)
        out.append((f"sequences of {half.seq} tokens", f"--seq {half.seq} --batch {half.batch}", half))
    return out
