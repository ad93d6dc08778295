"""Proving the best: partition a dozen, compile the top few, learn from each proof, stop when nothing can beat the best.

This layer knows no compiler: a `Prover` is handed in. Every proof is reported as it arrives, so that an interrupted
search loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from jaxplan.plan.plan import Plan
from jaxplan.search.progress import Progress

Tier = Literal["partition", "compile"]
OnProof = Callable[[Tier, int, Progress], None]


class Prover(Protocol):
    """Submits plans to a tier; None where the tier is not available here."""

    def partition(self, plan: Plan) -> Future[Any] | None: ...
    def compile(self, plan: Plan) -> Future[Any] | None: ...


@dataclass(frozen=True)
class Limits:
    """How much is proved.

    Attributes:
        top: how many plans must be compiled successfully.
        partitions: how many of the best are partitioned.
        compiles: the most compiles that are tried.
        jobs: proofs at a time.
    """

    top: int = 3
    partitions: int = 12
    compiles: int = 9
    jobs: int = 2


def prove(progress: Progress, prover: Prover, limits: Limits, on_proof: OnProof) -> None:
    """Runs the partition and compile tiers over the best candidates, updating `progress`.

    A candidate is compiled as soon as its own partition is known; the partitions of the others fill the gaps.

    Args:
        on_proof: called after every proof.
    """
    proving = _Proving(progress, prover, limits)
    while True:
        proving.fill()
        if not proving.pending:
            break
        done, _ = wait(proving.pending, return_when=FIRST_COMPLETED)
        for future in done:
            tier, row = proving.pending.pop(future)
            progress.proofs.setdefault(row, {})[tier] = future.result()
            if tier == "compile":
                progress.learn()
            on_proof(tier, row, progress)
    progress.stopped = proving.why_stopped()


@dataclass
class _Proving:
    """What is under way, what has been tried, and which tiers there are."""

    progress: Progress
    prover: Prover
    limits: Limits
    pending: dict[Future, tuple[Tier, int]] = field(default_factory=dict)
    tried: int = 0
    missing: set[Tier] = field(default_factory=set)

    def fill(self) -> None:
        """Submits jobs until as many are under way as may be."""
        while len(self.pending) < self.limits.jobs and (job := self.next_job()) is not None:
            tier, row = job
            submit = self.prover.partition if tier == "partition" else self.prover.compile
            future = submit(self.progress.plan_of(row))
            if future is None:
                self.missing.add(tier)
                continue
            self.tried += tier == "compile"
            self.pending[future] = job

    def next_job(self) -> tuple[Tier, int] | None:
        """The next compile that is wanted and may start, else the next partition."""
        order = self.progress.order()
        to_partition = [row for row in order if self.open("partition", row)] if self.partitions_left() else []
        for row in self.to_compile(order)[: self.compiles_wanted()]:
            if row in to_partition:
                return "partition", row
            if ("partition", row) not in self.pending.values():
                return "compile", row
        return ("partition", to_partition[0]) if to_partition else None

    def to_compile(self, order: list[int]) -> list[int]:
        """Candidates that can be compiled, in the order in which they should be.

        First the best of each kind (`Progress.roles`): what a compile teaches holds for its kind, and the estimates of
        another kind may be wrong by another factor. Then by what is expected.
        """
        rows = [row for row in order if self.open("compile", row)]
        if len(self.progress.compiled()) >= self.limits.top:
            return rows
        asked = [row for tier, row in self.pending.values() if tier == "compile"]
        known = {int(self.progress.roles[row]) for row in [*self.progress.compiled(), *asked]}
        first: dict[int, int] = {}
        for row in rows:
            if (kind := int(self.progress.roles[row])) not in known:
                first.setdefault(kind, row)
        return [*first.values(), *(row for row in rows if row not in first.values())]

    def partitions_left(self) -> bool:
        """Whether more candidates may be partitioned."""
        done = sum("partition" in found for found in self.progress.proofs.values())
        running = sum(tier == "partition" for tier, _ in self.pending.values())
        return done + running < self.limits.partitions

    def open(self, tier: Tier, row: int) -> bool:
        """Whether a tier has not been asked about a candidate, and can be."""
        known = tier in self.progress.proofs.get(row, {}) or (tier, row) in self.pending.values()
        return tier not in self.missing and not known

    def compiles_wanted(self) -> int:
        """How many compiles may start: up to `top` successes, then the best estimate while it would come first."""
        running = sum(tier == "compile" for tier, _ in self.pending.values())
        compiled = self.progress.compiled()
        wanted = self.limits.top - len(compiled)
        if wanted <= 0:
            best = next((row for row in self.progress.order() if self.open("compile", row)), None)
            better = best is not None and self.progress.score(best) < self.progress.score(compiled[0])
            wanted = int(better)
        return max(0, min(wanted - running, self.limits.compiles - self.tried))

    def why_stopped(self) -> str:
        """Why nothing more is proved, in words."""
        if "compile" in self.missing:
            return "the target's compiler is not installed here"
        if not self.progress.compiled():
            return f"none of {self.tried} plans compiled"
        contenders = self.progress.contenders()
        if not contenders:
            return "no uncompiled plan's lower bound can beat the best compiled one"
        if self.tried >= self.limits.compiles:
            return f"{self.limits.compiles} compiles were tried (--compiles raises it)"
        return (
            "no uncompiled plan is expected to beat the best compiled one; the lower bounds of "
            f"{contenders:,} still could (--top {2 * self.limits.top} compiles more of them)"
        )
