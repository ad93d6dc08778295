"""The expected throughput of a job that goes on with fewer nodes, beside one that waits for a repair.

Units (hosts, or slices) fail at a rate that is proportional to those that run, and are back after a repair of mean D.
As long as the job runs, the number X in repair is a birth-death process; its distribution is Erlang's

    p_x proportional to a_0 a_1 ... a_{x-1} / x!,   a_x = (failures per second with x in repair) D,

whatever the distribution of repairs (insensitivity of loss systems: Sevast'yanov 1957, Theory Probab. Appl. 2(1)). With
equal rates and without an end it is Poisson's (Palm's theorem, `goodput.spares`). It ends at the first X at which the
job stops, where nothing that fails is counted: the share of time there is Erlang's loss formula (Erlang 1917). A job
that waits stops when more are in repair than there are spares; a degraded one when more are than it has plans for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxplan.goodput.assessment import Assessment, Question
from jaxplan.goodput.checks import not_negative, positive
from jaxplan.goodput.restart import OTHER, total_s
from jaxplan.units import DAY_S


@dataclass(frozen=True)
class Level:
    """One plan of a job and when it runs.

    Attributes:
        lost: units that may be missing, at most; 0 is the full plan.
        relative: its throughput while it runs, over the full plan's.
        failures_per_s: that stop it.
        useful: share of the time that is useful work, without any waiting for nodes.
    """

    lost: int
    relative: float
    failures_per_s: float
    useful: float

    def __post_init__(self) -> None:
        not_negative(lost=self.lost)
        positive(relative=self.relative, failures_per_s=self.failures_per_s, useful=self.useful)
        if self.useful > 1:
            raise ValueError(f"useful must be at most 1, got {self.useful}")


@dataclass(frozen=True)
class OverTime:
    """What a job does in the long run.

    Attributes:
        shares: of the time at each level, and, last, stopped.
        returns: share of the time in planned restarts, with which a job takes up units that are back.
        throughput: useful work over what the full plan would do if nothing ever failed.
    """

    spares: int
    levels: tuple[Level, ...]
    shares: tuple[float, ...]
    returns: float
    throughput: float


def level_of(question: Question, lost: int, nodes: int, relative: float) -> Level:
    """A plan on so many nodes, whose saves and restarts are those of the question.

    Waiting for nodes is not in it: it stretches a cycle from M to M + D and nothing else (`goodput.expected`).
    """
    failures = replace(question.failures, nodes=nodes)
    found = Assessment(replace(question, failures=failures, work=None))
    mean = found.setting.mtbf_s
    return Level(lost, relative, failures.per_day / DAY_S, found.goodput * (mean + found.setting.wait_s) / mean)


def planned_restart_s(question: Question) -> float:
    """A restart on purpose: a save until it is durable, and all of a restart but the detection."""
    found = Assessment(question)
    again = total_s([phase for phase in found.phases if phase.name != OTHER])
    return found.setting.block_s + found.setting.write_s + again


def undominated(levels: Sequence[Level]) -> tuple[Level, ...]:
    """Without the smaller plans that are no faster than one which needs less; the full one runs while it can."""
    ordered = sorted(levels, key=lambda level: level.lost)
    kept = (i for i, a in enumerate(ordered) if not a.lost or all(b.relative < a.relative for b in ordered[i + 1 :]))
    return tuple(ordered[i] for i in kept)


def in_repair(failures_per_s: Sequence[float], repair_s: float) -> tuple[float, ...]:
    """P(X = 0), P(X = 1), ... of the number in repair.

    Args:
        failures_per_s: with 0, 1, ... in repair; at the next number the job stops and nothing fails.
    """
    weights = [1.0]
    for x, rate in enumerate(failures_per_s):
        weights.append(weights[-1] * rate * repair_s / (x + 1))
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def over_time(levels: Sequence[Level], spares: int, repair_s: float, planned_restart_s: float) -> OverTime:
    """The long run of a job with these plans; with the full one alone, of a job that waits.

    A spare that takes a failed unit's place keeps the plan. When a unit is back and a better plan can run, the job
    saves and restarts on purpose: in the long run as often as it went down, rate x P(X) of the state below.

    Args:
        levels: the full plan first, then by `lost`, ascending.
        spares: units that wait.
        planned_restart_s: save and restart without a failure.

    Raises:
        ValueError: no full plan, or the levels are not in order.
    """
    positive(repair_s=repair_s)
    not_negative(spares=spares, planned_restart_s=planned_restart_s)
    if not levels or [level.lost for level in levels] != sorted({0, *(level.lost for level in levels)}):
        raise ValueError(f"levels must begin with 0 lost and ascend, got {[level.lost for level in levels]}")
    place = [_level_at(levels, max(0, x - spares)) for x in range(spares + levels[-1].lost + 1)]
    chances = in_repair([levels[i].failures_per_s for i in place], repair_s)
    shares = [math.fsum(chances[x] for x, i in enumerate(place) if i == level) for level in range(len(levels))]
    ups = [chances[x] * levels[place[x]].failures_per_s for x in range(len(place) - 1) if place[x] != place[x + 1]]
    returns = min(1.0, math.fsum(ups) * planned_restart_s)
    work = math.fsum(share * level.relative * level.useful for share, level in zip(shares, levels, strict=True))
    return OverTime(spares, tuple(levels), (*shares, chances[-1]), returns, work * (1 - returns))


def _level_at(levels: Sequence[Level], missing: int) -> int:
    """The place of the best plan that bears so many missing units."""
    return next(i for i, level in enumerate(levels) if level.lost >= missing)
