"""Useful share of time that runs published, beside what the closed form makes of their published inputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from jaxplan.goodput.expected import goodput
from jaxplan.goodput.failures import Failures, rate_of
from jaxplan.goodput.interval import bounded_s, exact_s
from jaxplan.goodput.setting import Setting

ROUNDED = 0.02      # chosen: published shares have one or two digits, and are read off charts

AGREES, IN_REACH, MISSES, NOTHING = "agrees", "in reach", "misses", "nothing to compare"

Range = tuple[float, float]


@dataclass(frozen=True)
class Inputs:
    """What is known of a run, each as (low, high). `interval_s` None: nobody published it, the best is taken."""

    mtbf_s: Range
    block_s: Range
    write_s: Range
    restart_s: Range
    interval_s: Range | None

    def __post_init__(self) -> None:
        for name, pair in vars(self).items():
            if pair is not None and not pair[0] <= pair[1]:
                raise ValueError(f"{name} must be (low, high), got {pair}")


def mtbf_s(
    nodes: int | None, per_1000_node_days: Range | None, failures: Range | None, days: Range | None, given: Range | None
) -> Range | None:
    """(shortest, longest) mean time between failures, from the inputs that there are; None where they do not say it."""
    if given is not None:
        return given
    if nodes is None:
        return None
    if per_1000_node_days is not None:
        found = [Failures(rate, nodes).mtbf_s for rate in per_1000_node_days]
    elif failures is not None and days is not None:
        pairs = itertools.product(failures, days)
        found = [Failures(rate_of(count, length, nodes), nodes).mtbf_s for count, length in pairs]
    else:
        return None
    return min(found), max(found)


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


def compare(id: str, inputs: Inputs | None, value: float | None, at_least: float | None) -> Comparison:
    """Goodput at every corner of the inputs' ranges."""
    if inputs is None:
        return Comparison(id, None, None, value, at_least)
    found, intervals = [], []
    ranges: Mapping[str, Range] = {k: v for k, v in vars(inputs).items() if k != "interval_s"}
    for corner in itertools.product(*ranges.values()):
        setting = Setting(**dict(zip(ranges, corner, strict=True)))
        best = bounded_s(exact_s(setting.block_s, setting.mtbf_s), setting.write_s)
        for interval in inputs.interval_s or (best,):
            found.append(float(goodput(setting, interval)))
            intervals.append(interval)
    return Comparison(id, (min(found), max(found)), (min(intervals), max(intervals)), value, at_least)
