"""The whole answer to one question: how often to save, what share of time is useful, spares, days and money."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jaxplan.goodput import badput, expected, simulation, spares, two_level
from jaxplan.goodput.badput import Ledger
from jaxplan.goodput.budget import Budget, Work
from jaxplan.goodput.checks import positive
from jaxplan.goodput.curve import Curve, checked, curve
from jaxplan.goodput.failures import Failures, Law
from jaxplan.goodput.interval import bounded_s, daly_s, exact_s, young_s
from jaxplan.goodput.restart import RESTORE, Phase, first_start_s, in_order, total_s
from jaxplan.goodput.sensitivity import Lever, levers, two_level_levers
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.simulation import Simulated
from jaxplan.goodput.two_level import Local, Pattern

KINDS = ("async", "blocking")
CONFIDENCE = 0.99   # chosen: of the band of simulated goodput
NO_GOODPUT = 1e-6   # below it nothing useful can be said of days
YOUNG_VALID = 0.1   # chosen: C / M up to which the first order is within some percent of the optimum


@dataclass(frozen=True)
class LocalSave:
    """A local level of checkpoints: a save's block, the time to restore from it, the share of failures it serves."""

    block_s: float
    restore_s: float
    share: float


@dataclass(frozen=True)
class Question:
    """What goodput is asked of.

    Attributes:
        kind: `async`: training stops for `block_s`, the save is durable `write_s` later; `blocking`: for both.
        phases: of a restart, its last the restore of a checkpoint.
        repair_s: until a failed node is back; spares bridge it.
        spare_nodes: None: as many as it takes for `spares_probability`.
        step_s: of one optimizer step: an interval is a whole number of them; None where nobody said.
        interval_s: an interval that the user asks for; None: the best.
        shape: of Weibull's distribution, for a second simulation; None: no second one.
    """

    failures: Failures
    kind: str
    block_s: float
    write_s: float
    phases: tuple[Phase, ...]
    chips_per_node: int
    repair_s: float
    spares_probability: float
    spare_nodes: int | None = None
    local: LocalSave | None = None
    step_s: float | None = None
    interval_s: float | None = None
    work: Work | None = None
    price_per_chip_hour: float | None = None
    shape: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        positive(chips_per_node=self.chips_per_node, repair_s=self.repair_s)
        for name in ("step_s", "interval_s", "shape"):
            if getattr(self, name) is not None:
                positive(**{name: getattr(self, name)})
        if self.spare_nodes is not None and self.spare_nodes < 0:
            raise ValueError(f"spare_nodes must be at least 0, got {self.spare_nodes}")


@dataclass(frozen=True)
class Answer:
    """One formula's interval and what it gives in this setting; `why_not` where the formula does not hold."""

    name: str
    interval_s: float
    goodput: float
    source: str
    why_not: str = ""


@dataclass(frozen=True)
class Spares:
    """How many spare nodes, for which probability; the table about that number."""

    count: int
    wanted: float
    in_repair: float
    table: tuple[tuple[int, float], ...]

    @property
    def reached(self) -> float:
        return spares.probability(self.count, self.in_repair)


@dataclass(frozen=True)
class Assessment:
    """Everything known about one question; each figure is worked out when it is first asked for.

    Raises:
        ValueError: an interval below the floor or beyond the run, or nothing useful is done at all.
    """

    question: Question

    def __post_init__(self) -> None:
        given = self.question.interval_s
        if given is not None and given < self.floor_s * (1 - 1e-9):
            raise ValueError(
                f"interval_s must be at least {self.floor_s:.6g}, until the last save is durable and a step is done, "
                f"got {given:g}"
            )
        if given is not None and given > self.run_s:
            raise ValueError(f"interval_s must be at most the run's {self.run_s:.6g} s of work, got {given:g}")
        if self.goodput < NO_GOODPUT:
            raise ValueError(f"goodput is {self.goodput:.1e}: next to nothing is done between two failures")

    @cached_property
    def spares(self) -> Spares:
        asked = self.question
        mean = spares.in_repair(asked.failures.per_day, asked.repair_s)
        enough = spares.needed(asked.spares_probability, mean)
        count = enough if asked.spare_nodes is None else asked.spare_nodes
        shown = sorted({*range(max(0, enough - 5), enough + 4), count})
        table = tuple((n, spares.probability(n, mean)) for n in shown)
        return Spares(count, asked.spares_probability, mean, table)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return in_order(self.question.phases)

    @cached_property
    def setting(self) -> Setting:
        """The remote, or only, level."""
        asked = self.question
        whole = asked.kind == "blocking"
        return Setting(
            mtbf_s=asked.failures.mtbf_s,
            block_s=asked.block_s + (asked.write_s if whole else 0.0),
            restart_s=total_s(self.phases),
            write_s=0.0 if whole else asked.write_s,
            wait_s=spares.wait_s(self.spares.count, self.spares.in_repair, asked.repair_s),
        )

    @cached_property
    def local_phases(self) -> tuple[Phase, ...]:
        """Of a restart from the local copy."""
        assert self.question.local is not None
        others = [phase for phase in self.phases if phase.name != RESTORE]
        return in_order((*others, Phase(RESTORE, self.question.local.restore_s)))

    @cached_property
    def local(self) -> Local | None:
        given = self.question.local
        return None if given is None else Local(given.block_s, total_s(self.local_phases), given.share)

    @property
    def floor_s(self) -> float:
        """The shortest interval that can be kept: a remote save is durable before the next begins, in whole steps.

        With a local level an interval is only as long as a step; the pattern sees to the rest.
        """
        step = self.question.step_s or 0.0
        if self.question.local is not None:
            return step
        return _steps(self.setting.write_s, step, math.ceil)

    @cached_property
    def pattern(self) -> Pattern:
        """Interval and, with a local level, local saves between two remote ones; in whole steps."""
        asked = self.question
        if self.local is not None:
            free = two_level.best(self.setting, self.local, self.floor_s)
            interval = free.interval_s if asked.interval_s is None else asked.interval_s
            kept = self._kept(interval)
            durable = math.ceil(self.setting.write_s / kept * (1 - 1e-9))    # saves until the remote one is
            every = max(free.every, durable)
            return Pattern(kept, every if math.isinf(self.run_s) else max(1, min(every, int(self.run_s / kept))))
        exact = exact_s(self.setting.block_s, self.setting.mtbf_s)
        return Pattern(self._kept(exact if asked.interval_s is None else asked.interval_s), 1)

    def _kept(self, interval_s: float) -> float:
        whole = _steps(interval_s, self.question.step_s or 0.0, round)
        kept = bounded_s(whole, self.floor_s)
        if kept <= 0:
            raise ValueError("block_s, write_s or step_s must be positive: free saves have no best interval")
        return min(kept, self.run_s)

    @property
    def run_s(self) -> float:
        """The work of the whole run, beyond which there is nothing to save; endless where there is no budget."""
        return math.inf if self.question.work is None else self.question.work.useful_s

    @property
    def interval_s(self) -> float:
        return self.pattern.interval_s

    @property
    def remote_interval_s(self) -> float:
        return self.pattern.remote_interval_s

    @property
    def interval_steps(self) -> int | None:
        """The interval in optimizer steps, where a step's time is known."""
        return round(self.interval_s / self.question.step_s) if self.question.step_s else None

    @property
    def restore_s(self) -> float:
        return math.fsum(phase.seconds for phase in self.phases if phase.name == RESTORE)

    @property
    def expected_failures(self) -> float | None:
        """Of the whole run; one of M + D seconds each."""
        return None if self.budget is None else self.budget.total_s / (self.setting.mtbf_s + self.setting.wait_s)

    def goodput_at(self, interval_s: float) -> float:
        if self.local is not None:
            return two_level.goodput(self.setting, self.local, replace(self.pattern, interval_s=interval_s))
        return float(expected.goodput(self.setting, interval_s))

    @cached_property
    def goodput(self) -> float:
        return self.goodput_at(self.interval_s)

    @cached_property
    def first_order(self) -> float | None:
        """1 - waste; of one level only."""
        return None if self.local is not None else float(expected.ettr(self.setting, self.interval_s))

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """Every formula's interval, in this setting."""
        if self.local is not None:
            first = two_level.first_order(self.setting, self.local)
            value = two_level.goodput(self.setting, self.local, first)
            return (
                Answer("first order", first.interval_s, value, "Benoit et al. 2017, IEEE TC 66(7)"),
                Answer("numerical", self.interval_s, self.goodput, "maximum of the exact expectation"),
            )
        block, mean = self.setting.block_s, self.setting.mtbf_s
        known = (
            ("Young", young_s(block, mean), "Young 1974, CACM 17(9)", block <= YOUNG_VALID * mean),
            ("Daly", daly_s(block, mean), "Daly 2006, FGCS 22(3)", block < 2 * mean),
            ("exact", exact_s(block, mean), "Bougeret et al. 2011, SC'11 (Lambert W)", True),
        )
        return tuple(self._answer(*entry) for entry in known)

    def _answer(self, name: str, interval_s: float, source: str, holds: bool) -> Answer:
        why = "" if holds else "a save is too long beside the time between failures"
        if interval_s < self.floor_s:
            why = "a save is not durable before the next begins" if self.setting.write_s else "shorter than a step"
        return Answer(name, interval_s, self.goodput_at(interval_s) if interval_s > 0 else 0.0, source, why)

    @cached_property
    def simulated(self) -> tuple[Simulated, ...]:
        """Exponential failures, which the closed form must agree with; then Weibull's."""
        asked = self.question
        if self.local is not None:
            value, error = two_level.simulated(self.setting, self.local, self.pattern, seed=asked.seed)
            return (simulation.banded(value, error, CONFIDENCE, two_level.SIMULATED, asked.seed),)
        laws = [Law(), *([Law(asked.shape)] if asked.shape is not None else [])]
        at = self.setting, self.interval_s
        return tuple(simulation.goodput(*at, law, seed=asked.seed, confidence=CONFIDENCE) for law in laws)

    @cached_property
    def days(self) -> tuple[tuple[float, float, float] | None, ...]:
        """(5th percentile, median, 95th) of the run's length in seconds, for each simulated law of one level.

        None without a budget, and for runs of more failures than can be drawn.
        """
        asked = self.question
        runs = simulation.affordable_runs(self.expected_failures or 0.0)
        if asked.work is None or self.local is not None or not runs:
            return (None,) * len(self.simulated)
        start = first_start_s(self.phases)
        found = []
        for one in self.simulated:
            lengths = simulation.lengths_s(
                self.setting, self.interval_s, asked.work.useful_s, start, one.law, runs, asked.seed
            )
            low, middle, high = np.percentile(lengths, (5, 50, 95))
            found.append((float(low), float(middle), float(high)))
        return tuple(found)

    @cached_property
    def curve(self) -> Curve:
        found = curve(self.goodput_at, self.interval_s, self.floor_s)
        return found if self.local is not None else checked(found, self.setting, self.question.seed, CONFIDENCE)

    @cached_property
    def ledger(self) -> Ledger:
        if self.local is not None:
            return badput.two_level_ledger(self.setting, self.local, self.pattern, self.phases, self.local_phases)
        return badput.ledger(self.setting, self.interval_s, self.phases)

    @cached_property
    def levers(self) -> tuple[Lever, ...]:
        floor = self.question.step_s or 0.0
        if self.local is not None:
            return two_level_levers(self.setting, self.local, self.pattern, floor)
        return levers(self.setting, self.interval_s, floor)

    @cached_property
    def budget(self) -> Budget | None:
        asked = self.question
        if asked.work is None:
            return None
        return Budget(
            work=asked.work,
            goodput=self.goodput,
            first_start_s=first_start_s(self.phases),
            chips=asked.failures.nodes * asked.chips_per_node,
            spare_chips=self.spares.count * asked.chips_per_node,
            price_per_chip_hour=asked.price_per_chip_hour,
        )


def _steps(seconds: float, step_s: float, whole: Callable[[float], int]) -> float:
    """The nearest (or next) whole number of steps, at least one; unchanged where no step is known."""
    return max(1, whole(seconds / step_s)) * step_s if step_s > 0 else seconds
