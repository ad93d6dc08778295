"""One plan explained, as data: what `explain` says. Nothing is computed here but shares and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxplan.compile.evidence import Evidence, Traffic
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import MemoryLedger, Part, PlanRecord, TimeLedger
from jaxplan.report.check import Verdict
from jaxplan.search.explain import Anatomy, Correction
from jaxplan.search.neighbours import Neighbour
from jaxplan.search.rank import MEMORY_MARGIN
from jaxplan.search.why_not import WhyNot

BEST = 3        # neighbours that are named


@dataclass(frozen=True)
class ExplainReport:
    """Everything that is said of a plan.

    Attributes:
        broken: the rule of the search that the plan breaks, or an empty text.
        evidence: of the tiers that judged the plan as it is.
        uncovered: operations that no figure counts, by primitive.
    """

    record: PlanRecord
    anatomy: Anatomy
    correction: Correction
    neighbours: tuple[Neighbour, ...]
    broken: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    why_not: WhyNot | None = None
    uncovered: Mapping[str, int] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.record.plan

    @property
    def capacity_bytes(self) -> int:
        return self.plan.machine.device_hbm_bytes

    @property
    def compiled(self) -> Evidence | None:
        """What the target's compiler said, if it accepted the plan."""
        found = self.evidence.get("compiled")
        return found if found is not None and found.ok else None

    @property
    def estimated_time(self) -> TimeLedger:
        estimate = self.anatomy.estimate
        parts = tuple(Part(name, spent, "estimated") for name, spent in estimate.time_s.items())
        total = math.fsum(part.amount for part in parts)
        return TimeLedger(parts, min(estimate.low_s, total), max(estimate.high_s, total))

    @property
    def compiled_time(self) -> TimeLedger | None:
        """The ledger of the compiled schedule."""
        schedule = self.compiled.schedule if self.compiled is not None else None
        if schedule is None or not schedule.ledger:
            return None
        parts = tuple(Part(name, spent, "compiled") for name, spent in schedule.ledger)
        total = math.fsum(part.amount for part in parts)
        return TimeLedger(parts, min(schedule.low_s, total), max(schedule.high_s, total))

    @property
    def time(self) -> TimeLedger:
        """The best known ledger."""
        return self.compiled_time or self.estimated_time

    @property
    def step_s(self) -> float:
        """The best known step time: compiled, else estimated and corrected."""
        compiled = self.compiled_time
        return compiled.value_s if compiled is not None else self.estimated_time.value_s * self.correction.time

    @property
    def estimated_memory(self) -> MemoryLedger:
        found = self.anatomy.estimate.memory_bytes
        return MemoryLedger(tuple(Part(name, n, "estimated") for name, n in found.items()), self.capacity_bytes)

    @property
    def compiled_memory(self) -> MemoryLedger | None:
        """The ledger of the plan file, where the compiler has spoken: its total, and the parts that it tells."""
        known = self.record.memory
        return known if known is not None and self.compiled is not None and "compiled" in known.source else None

    @property
    def total_bytes(self) -> float:
        """The best known memory of a device: compiled, or what a refusal said, else estimated and corrected."""
        refused = self.evidence.get("compiled")
        if refused is not None and refused.total_bytes:
            return float(refused.total_bytes)
        return self.estimated_memory.total_bytes * self.correction.memory

    @property
    def verdict(self) -> Verdict:
        """Whether the plan fits (None: too close to tell), and who says so. A refusal of any tier counts."""
        refusals = [found.tier for found in self.evidence.values() if found.refuses]
        if refusals:
            return Verdict(False, refusals[-1])
        if self.compiled is not None:
            return Verdict(True, "compiled")
        if self.total_bytes > self.capacity_bytes:
            return Verdict(False, "estimated")
        return Verdict(True if self.total_bytes * (1 + MEMORY_MARGIN) <= self.capacity_bytes else None, "estimated")

    def by_tier(self, figure: str) -> Mapping[str, float]:
        """What each tier said of `total_bytes` or `step_time_s` of the plan as it is, the cheapest tier first."""
        return {} if self.record.stale else dict(self.record.compared(figure))

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.plan.workload.tokens / self.step_s / self.plan.machine.chips

    @property
    def bottleneck(self) -> tuple[str, float]:
        """The largest entry of the best known time ledger, and its share."""
        ledger = self.time
        largest = max(ledger.parts, key=lambda part: part.amount)
        return largest.name, largest.amount / ledger.value_s

    def best(self) -> Sequence[Neighbour]:
        """The fastest neighbours that fit."""
        return [neighbour for neighbour in self.neighbours if neighbour.fits][:BEST]

    def worth(self) -> Sequence[Neighbour]:
        """Of each decision the best neighbour: one that fits before one that does not."""
        best: dict[str, Neighbour] = {}
        for neighbour in sorted(self.neighbours, key=lambda n: not n.fits):
            best.setdefault(neighbour.decision, neighbour)
        return list(best.values())

    def traffic_of(self, axis: str) -> Sequence[Traffic]:
        """What the compiled program moves over an axis, the most bytes first."""
        found = self.compiled.traffic if self.compiled is not None else ()
        return sorted((entry for entry in found if axis in entry.axes), key=lambda entry: -entry.nbytes)
