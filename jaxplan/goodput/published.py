"""Useful share of time that runs published, beside what the closed form makes of their published inputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jaxplan.goodput.expected import goodput
from jaxplan.goodput.failures import Failures, rate_of
from jaxplan.goodput.interval import bounded_s, exact_s
from jaxplan.goodput.setting import Setting
from jaxplan.machine.failures import PublishedRun, Range

ROUNDED = 0.02      # chosen: published shares have one or two digits, and are read off charts

AGREES, IN_REACH, MISSES, NOTHING = "agrees", "in reach", "misses", "nothing to compare"


@dataclass(frozen=True)
class Comparison:
    """One run: what was predicted, from what, and what was published.

    Attributes:
        predicted: (low, high) over the ranges of the inputs; None where inputs were not published.
        value, at_least: what was published: a figure, or a bound; neither where only words were.
        interval_s: (low, high) that were published or are best.
    """

    id: str
    predicted: Range | None
    interval_s: Range | None
    value: float | None
    at_least: float | None

    @property
    def verdict(self) -> str:
        """`agrees`: the whole predicted range does, to the rounding of what was published; `in reach`: a part of it."""
        if self.predicted is None or (self.value is None and self.at_least is None):
            return NOTHING
        low, high = self.predicted
        if self.at_least is not None:
            return AGREES if low >= self.at_least else IN_REACH if high >= self.at_least else MISSES
        assert self.value is not None
        if abs(low - self.value) <= ROUNDED and abs(high - self.value) <= ROUNDED:
            return AGREES
        return IN_REACH if low - ROUNDED <= self.value <= high + ROUNDED else MISSES


def compared(run: PublishedRun) -> Comparison:
    """Goodput at every corner of the inputs' ranges, beside what was published."""
    between = mtbf_s(run)
    given = {"mtbf_s": between, "block_s": run.block_s, "write_s": run.write_s, "restart_s": run.restart_s}
    known = {name: pair for name, pair in given.items() if pair is not None}
    if len(known) < len(given):
        return Comparison(run.id, None, None, run.value, run.at_least)
    found, intervals = [], []
    for corner in itertools.product(*known.values()):
        setting = Setting(**dict(zip(known, corner, strict=True)))
        best = bounded_s(exact_s(setting.block_s, setting.mtbf_s), setting.write_s)
        for interval in run.interval_s or (best,):
            found.append(float(goodput(setting, interval)))
            intervals.append(interval)
    return Comparison(run.id, (min(found), max(found)), (min(intervals), max(intervals)), run.value, run.at_least)


def mtbf_s(run: PublishedRun) -> Range | None:
    """(shortest, longest) mean time between failures, from the inputs that there are; None where they do not say it."""
    if run.mtbf_s is not None:
        return run.mtbf_s
    if run.nodes is None:
        return None
    if run.per_1000_node_days is not None:
        rates = list(run.per_1000_node_days)
    elif run.failures is not None and run.days is not None:
        rates = [rate_of(count, days, run.nodes) for count, days in itertools.product(run.failures, run.days)]
    else:
        return None
    found = [Failures(rate, run.nodes).mtbf_s for rate in rates]
    return min(found), max(found)
