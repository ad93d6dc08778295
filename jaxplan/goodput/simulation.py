"""Runs with failures drawn at random: a check of the closed form, the spread of a run's length, other distributions.

Vectorised: one column is one failure, one row one run. Nothing of `expected` is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from jaxplan.goodput.checks import not_negative, positive, share
from jaxplan.goodput.failures import Law
from jaxplan.goodput.setting import Setting

RUNS, FEWEST_RUNS = 400, 40     # chosen: enough for the 5th and 95th percentile of a run's length; fewer say nothing
MOST_FAILURES = 2**22           # chosen: of all runs together, about a second
AT_ONCE, BATCH = 2**18, 64      # chosen: failures that are drawn at a time: of all runs, and at least of each


@dataclass(frozen=True)
class Simulated:
    """Goodput of many cycles, with a band that holds the true mean with the confidence asked for."""

    law: Law
    value: float
    low: float
    high: float
    confidence: float
    failures: int
    seed: int

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def cycles(
    setting: Setting, interval_s: float, law: Law, generator: np.random.Generator, size: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(useful seconds, seconds) of as many cycles as `size` says: from one failure to the next.

    A failure before the restart is done, or before its first save is durable, gains nothing.
    """
    until = law.draw(generator, setting.mtbf_s, size)
    trained = until - setting.restart_s - setting.write_s
    saves = np.floor(np.maximum(0.0, trained) / (interval_s + setting.block_s))
    return saves * interval_s, until + setting.wait_s


def goodput(
    setting: Setting,
    interval_s: float,
    law: Law = Law(),  # noqa: B008  frozen
    failures: int = 200_000,
    seed: int = 0,
    confidence: float = 0.99,
) -> Simulated:
    """Goodput over many cycles: the ratio of sums, its band by the delta method for ratios of means.

    var(ratio) = mean((useful - ratio x time)^2) / (n mean(time)^2).
    """
    positive(interval_s=interval_s, failures=failures)
    share(confidence=confidence)
    useful, time = cycles(setting, interval_s, law, np.random.default_rng(seed), (failures,))
    value = float(useful.sum() / time.sum())
    error = math.sqrt(float(np.mean((useful - value * time) ** 2)) / failures) / float(time.mean())
    return banded(value, error, confidence, failures, seed, law)


def banded(
    value: float, error: float, confidence: float, failures: int, seed: int, law: Law = Law()  # noqa: B008  frozen
) -> Simulated:
    """A mean with its normal band, from its standard error."""
    reach = float(norm.ppf((1 + confidence) / 2)) * error
    return Simulated(law, value, value - reach, value + reach, confidence, failures, seed)


def affordable_runs(expected_failures: float) -> int:
    """How many runs of that many failures can be simulated; 0 where they are too long for it."""
    runs = min(RUNS, int(MOST_FAILURES / 2 / max(1.0, expected_failures)))
    return runs if runs >= FEWEST_RUNS else 0


def lengths_s(
    setting: Setting,
    interval_s: float,
    useful_s: float,
    first_start_s: float = 0.0,
    law: Law = Law(),  # noqa: B008  frozen
    runs: int = RUNS,
    seed: int = 0,
) -> np.ndarray:
    """How long each of many runs takes until `useful_s` of work are done, (runs,) in seconds.

    The last cycle ends with the work, not with a failure; the first begins with the first start instead of a restart.

    Raises:
        ValueError: next to nothing is done between failures, so that runs would hardly end.
    """
    positive(interval_s=interval_s, useful_s=useful_s, runs=runs)
    not_negative(first_start_s=first_start_s)
    generator = np.random.default_rng(seed)
    left, spent = np.full(runs, float(useful_s)), np.full(runs, float(first_start_s) - setting.restart_s)
    done, drawn = np.zeros(runs, dtype=bool), 0
    while not done.all():
        rows = np.flatnonzero(~done)
        columns = max(BATCH, min(AT_ONCE // len(rows), math.ceil(left[rows].max() / setting.mtbf_s)))
        drawn += columns * len(rows)
        if drawn > MOST_FAILURES:
            raise ValueError(f"runs do not end: {drawn:,} failures were drawn for {useful_s:.3g} s of work")
        useful, time = cycles(setting, interval_s, law, generator, (len(rows), columns))
        before = left[rows, None] - np.cumsum(useful, axis=1) + useful       # still to do when each cycle begins
        saves = np.maximum(0, np.ceil(before / interval_s) - 1)
        whole = setting.restart_s + before + saves * setting.block_s
        ends = (time - setting.wait_s >= whole) & (before > 0)
        last = np.where(ends.any(axis=1), ends.argmax(axis=1), columns - 1)
        at, picked = np.arange(len(rows)), ends.any(axis=1)
        until = np.cumsum(time, axis=1)[at, last]
        spent[rows] += np.where(picked, until - time[at, last] + whole[at, last], until)
        left[rows] = np.where(picked, 0.0, before[at, last] - useful[at, last])
        done[rows] = picked
    return spent
