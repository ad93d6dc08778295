"""What is known so far of a search: the estimates, the proofs, and what the proofs taught about the estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from jaxplan.plan.plan import Plan
from jaxplan.plan.remat import policy
from jaxplan.search.rank import AS_FAST, MEMORY_MARGIN, Ranking


class Proof(Protocol):
    """What a tier found out about a plan (`compile.evidence.Evidence`)."""

    @property
    def ok(self) -> bool: ...
    @property
    def refuses(self) -> bool: ...
    @property
    def total_bytes(self) -> float | None: ...
    @property
    def step_time_s(self) -> float | None: ...


@dataclass
class Progress:
    """Everything known so far; `proofs[row][tier]` is the proof of a candidate.

    Attributes:
        objective: `time` (fastest first) or `memory` (smallest first).
        memory_ratio, time_ratio: of every candidate, compiled over estimated: the median of the compiled plans that are
            alike (of the same `roles`), else of all (1 before the first).
        stopped: why the search stopped, in words.
    """

    ranking: Ranking
    plan_of: Callable[[int], Plan]
    objective: str = "time"
    proofs: dict[int, dict[str, Any]] = field(default_factory=dict)
    memory_ratio: np.ndarray = field(init=False)
    time_ratio: np.ndarray = field(init=False)
    stopped: str = ""

    def __post_init__(self) -> None:
        self.memory_ratio = np.ones(len(self.ranking.space))
        self.time_ratio = np.ones(len(self.ranking.space))

    @cached_property
    def roles(self) -> np.ndarray:
        """Which of tensor, context, expert, stage and host memory a candidate uses, one bit each: estimates err so."""
        space = self.ranking.space
        on_host = np.array([bool(policy(name).offloaded) for name in space.policies])[space.policy]
        on_host |= np.array([rules.offload_optimizer for rules in space.rule_sets])[space.rules]
        bits = [*(space.size_of(axis) > 1 for axis in ("tensor", "context", "expert", "stage")), on_host]
        return np.array(bits).T @ (1 << np.arange(len(bits)))

    def compiled(self) -> list[int]:
        """Candidates that the target's compiler accepted, fastest first."""
        rows = [row for row, found in self.proofs.items() if "compile" in found and found["compile"].ok]
        return sorted(rows, key=self.score)

    def refused(self) -> list[int]:
        """Candidates that a tier refused: they do not fit, or could not be partitioned or compiled."""
        return [row for row, found in self.proofs.items() if any(proof.refuses for proof in found.values())]

    def time_s(self, row: int) -> float:
        """The best known step time of a candidate: compiled, else the estimate corrected by what was learned."""
        proof = self.proofs.get(row, {}).get("compile")
        if proof is not None and proof.step_time_s is not None:
            return float(proof.step_time_s)
        return float(self.ranking.value_s[row] * self.time_ratio[row])

    @property
    def times_s(self) -> np.ndarray:
        """`time_s` of every candidate."""
        found = self.ranking.value_s * self.time_ratio
        for row in self.compiled():
            found[row] = self.time_s(row)
        return found

    def memory_bytes(self, row: int) -> float:
        """The best known memory of a candidate: compiled, else the estimate corrected by what was learned."""
        proof = self.proofs.get(row, {}).get("compile")
        if proof is not None and proof.total_bytes:
            return float(proof.total_bytes)
        return float(self.ranking.total_bytes[row] * self.memory_ratio[row])

    def score(self, row: int) -> float:
        """What the search makes small: seconds or bytes."""
        return self.time_s(row) if self.objective == "time" else self.memory_bytes(row)

    def order(self) -> list[int]:
        """Candidates that still fit, one for each mesh and policy, best first, refused ones left out."""
        corrected = self.ranking.total_bytes * self.memory_ratio
        needed = corrected * (1 + MEMORY_MARGIN)
        fits = self.ranking.placeable & (needed <= self.ranking.machine.device_hbm_bytes)
        fits[self.refused()] = False
        fits[self.compiled()] = True
        scores = self.times_s if self.objective == "time" else corrected.copy()
        for row in self.compiled():
            scores[row] = self.score(row)
        best: dict[int, int] = {}       # a compiled plan stands for all of its mesh and policy
        for row in self.compiled():
            best.setdefault(int(self.keys[row]), row)
        for key, row in best.items():
            fits[self.keys == key] = False
            fits[row] = True
        tolerance = AS_FAST if self.objective == "time" else 0.0
        rows = self.ranking.order(scores, fits, tolerance)
        first = np.unique(self.keys[rows], return_index=True)[1]
        return rows[np.sort(first)].tolist()

    @cached_property
    def keys(self) -> np.ndarray:
        """The mesh and the policy of each candidate as one number."""
        space = self.ranking.space
        return space.mesh.astype(np.int64) * len(space.policies) + space.policy

    def learn(self) -> None:
        """Corrects the estimates by the median ratios over what was compiled."""
        memory, times = {}, {}
        for row, found in self.proofs.items():
            proof = found.get("compile")
            if proof is None or not proof.total_bytes:
                continue
            memory[row] = proof.total_bytes / self.ranking.total_bytes[row]
            if proof.ok and proof.step_time_s:
                times[row] = proof.step_time_s / self.ranking.value_s[row]
        self.memory_ratio = self._medians(memory)
        self.time_ratio = self._medians(times)

    def _medians(self, ratios: dict[int, float]) -> np.ndarray:
        out = np.full(len(self.ranking.space), np.median(list(ratios.values())) if ratios else 1.0)
        for group in {int(self.roles[row]) for row in ratios}:
            out[self.roles == group] = np.median([r for row, r in ratios.items() if self.roles[row] == group])
        return out

    def contenders(self) -> int:
        """Uncompiled candidates whose lower bound, corrected, is still under the best compiled time."""
        best = self.compiled()
        if not best:
            return len(self.ranking.space)
        floor = self.ranking.low_s * np.minimum(1.0, self.time_ratio)
        alive = self.ranking.fits & (floor < self.time_s(best[0]))
        alive[list(self.proofs)] = False
        return int(alive.sum())
