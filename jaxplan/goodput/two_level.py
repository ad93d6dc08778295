"""Two levels of checkpoints: many cheap ones near the job, few that survive everything.

A share of the failures (a process that dies, a node whose peers hold its state) leaves the local copies; the others
need the remote one. A pattern is `every` intervals of work: each but the last ends in a local save, the last in a
remote one, which leaves a local copy, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from jaxplan.goodput.checks import not_negative, positive, share
from jaxplan.goodput.interval import young_s
from jaxplan.goodput.setting import Setting

MOST_LOCAL = 512        # chosen: local saves between two remote ones beyond which nothing more is gained
AROUND = 10             # chosen: the search goes that many times below and above the first-order intervals
FAILURES, RUNS = 2_000, 200     # chosen: simulated failures of each run, and runs
SIMULATED = FAILURES * RUNS
SHORTEST_S = 1e-9       # an interval is above 0
HOPELESS = 500          # of R / M: exp(-500) of the restarts are done before the next failure


@dataclass(frozen=True)
class Local:
    """The local level.

    Attributes:
        block_s: training stops for a local save.
        restart_s: from a failure that leaves the local copies to training again.
        share: of the failures, those that leave them.
    """

    block_s: float
    restart_s: float
    share: float

    def __post_init__(self) -> None:
        positive(local_block_s=self.block_s)
        not_negative(local_restart_s=self.restart_s)
        share(local_share=self.share)


@dataclass(frozen=True)
class Pattern:
    """Seconds of work between two saves of any level, and how many intervals end in one remote save."""

    interval_s: float
    every: int

    def __post_init__(self) -> None:
        positive(interval_s=self.interval_s)
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")

    @property
    def remote_interval_s(self) -> float:
        return self.interval_s * self.every


def first_order(remote: Setting, local: Local) -> Pattern:
    """tau_l = sqrt(2 C_l / lambda_l) for each level by itself, lambda_l the rate of failures that need that level.

    Benoit, Cavelan, Le Fevre, Robert, Sun 2017, "Towards optimal multi-level checkpointing", IEEE TC 66(7): the
    overhead is then the sum over levels of sqrt(2 lambda_l C_l). Holds where all costs are much shorter than M; the
    number of local saves is rounded to a whole one.
    """
    rate = 1 / remote.mtbf_s
    near = young_s(local.block_s, 1 / (rate * local.share))
    far = young_s(remote.block_s, 1 / (rate * (1 - local.share)))
    every = min(MOST_LOCAL, max(1, round(max(far, remote.write_s) / near)))
    return Pattern(near, every)


def goodput(remote: Setting, local: Local, pattern: Pattern) -> float:
    """Useful share of the time in the long run, of blocking saves on both levels: exact for exponential failures.

    S_j, the expected time from the start of interval j of a pattern to its end, is linear in S_1, where remote restarts
    lead, and in S_{j+1}: a geometric sum over the intervals that end in a local save. With p = exp(-L / M) for an
    interval of length L (work and save) and q the local share,

        S_j = M (1 - p) + p S_{j+1} + (1 - p) (D + q V_j + (1 - q) W)
        V_j = M (1 - u) + u S_j + (1 - u) (D + q V_j + (1 - q) W),   u = exp(-R_local / M)
        W   = M (1 - v) + v S_1 + (1 - v) (D + W),                   v = exp(-R / M)

    where V_j is a restart from the local copy and W one from the remote copy. That a remote save is durable only T_save
    later is added to first order, as the factor exp(-(1 - q) T_save / M).
    """
    mean, wait, q = remote.mtbf_s, remote.wait_s, local.share
    if remote.restart_s > HOPELESS * mean:
        return 0.0
    fails, holds = -math.expm1(-local.restart_s / mean), math.exp(-local.restart_s / mean)
    keeps = 1 - fails * q                                           # V_j = (fails x + holds S_j) / keeps
    far = np.array([math.expm1(remote.restart_s / mean) * (mean + wait), 1.0])      # W = far[0] + far[1] S_1
    away = np.array([mean + wait, 0.0]) + (1 - q) * far             # x, a failure but for V_j

    def interval(block_s: float) -> tuple[float, np.ndarray]:
        """(1 - k, c) of S_j = k S_{j+1} + c."""
        length = (pattern.interval_s + block_s) / mean
        lost = -math.expm1(-length)
        own = 1 - lost * q * holds / keeps
        return lost * (1 - q) / keeps / own, lost * away * (1 + q * fails / keeps) / own

    _, last = interval(remote.block_s)                              # S_{every + 1} = 0
    rest, c = interval(local.block_s)
    less = min(rest, math.nextafter(1, 0))                          # k itself may round to nothing
    times = math.expm1((pattern.every - 1) * math.log1p(-less))     # k^(every - 1) - 1
    a, b = (times + 1) * last - times / rest * c                    # S_1 = a + b S_1
    late = math.exp(-(1 - q) * remote.write_s / mean)
    return max(0.0, float(pattern.remote_interval_s * (1 - b) / a * late))


def restarts(remote: Setting, local: Local) -> tuple[float, float]:
    """(share of the restarts that read the remote copy, of those that read the local one), in the long run.

    A remote restart follows a failure of the second kind, and any failure in a remote restart: with f the probability
    of the latter, pi = pi (f + (1 - f)(1 - q)) + (1 - pi)(1 - q).
    """
    fails = -math.expm1(-remote.restart_s / remote.mtbf_s)
    away = (1 - local.share) / (1 - fails * local.share)
    return away, 1 - away


def best(remote: Setting, local: Local, floor_s: float = 0.0) -> Pattern:
    """The best pattern: numerically, about the first-order one.

    Args:
        floor_s: the shortest interval, such as a step.
    """
    start = first_order(remote, local)
    counts = sorted({max(1, min(MOST_LOCAL, round(start.every * f))) for f in np.geomspace(0.25, 4, 25)} | {1})
    found = [_of_count(remote, local, count, start, floor_s) for count in counts]
    return max(found, key=lambda pattern: goodput(remote, local, pattern))


def _of_count(remote: Setting, local: Local, every: int, start: Pattern, floor_s: float) -> Pattern:
    """The best interval of patterns with that many local saves; the remote save is durable before the next begins."""
    least = max(floor_s, remote.write_s / every, SHORTEST_S)
    ends = start.interval_s, young_s(remote.block_s, remote.mtbf_s) / every
    low = math.log(max(least, min(ends) / AROUND))
    high = max(low, math.log(max(ends) * AROUND))
    result = minimize_scalar(
        lambda x: -goodput(remote, local, Pattern(math.exp(x), every)), bounds=(low, high), method="bounded"
    )
    inside = Pattern(math.exp(float(result.x)), every)  # type: ignore[attr-defined]  scipy's stubs say object
    edge = Pattern(math.exp(low), every)
    return max(inside, edge, key=lambda pattern: goodput(remote, local, pattern))


def simulated(
    remote: Setting, local: Local, pattern: Pattern, failures: int = FAILURES, runs: int = RUNS, seed: int = 0
) -> tuple[float, float]:
    """(goodput, its standard error) of runs with failures of both kinds drawn at random, all runs at once."""
    generator = np.random.default_rng(seed)
    n, tau = pattern.every, pattern.interval_s
    near, whole = tau + local.block_s, n * tau + (n - 1) * local.block_s + remote.block_s
    place = np.zeros(runs)              # local intervals kept since the last remote save
    restart, away = np.full(runs, remote.restart_s), np.ones(runs, dtype=bool)
    useful, time = np.zeros(runs), np.zeros(runs)
    for _ in range(failures):
        until = generator.exponential(remote.mtbf_s, runs)
        is_local = generator.random(runs) < local.share
        trained = until - restart
        running = trained >= 0
        at = np.maximum(0.0, trained) + place * near
        patterns = np.floor(at / whole)
        here = np.minimum(np.floor((at - patterns * whole) / near), n - 1)
        durable = np.floor(np.maximum(0.0, at - remote.write_s) / whole)
        # a failure in a remote restart leads to another, one in a local restart leaves the local copies or not
        keeps = is_local & (running | ~away)
        reached = np.where(keeps, np.where(running, patterns * n + here, place), np.where(running, durable * n, 0.0))
        useful += (reached - place) * tau
        time += until + remote.wait_s
        place = np.where(keeps, np.where(running, here, place), 0.0)
        away = ~keeps
        restart = np.where(keeps, local.restart_s, remote.restart_s)
    ratio = useful / time
    return float(useful.sum() / time.sum()), float(ratio.std(ddof=1) / math.sqrt(runs))
