"""What to improve first: how goodput answers to the failure rate, the save and the restart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jaxplan.goodput import two_level
from jaxplan.goodput.expected import goodput
from jaxplan.goodput.interval import bounded_s, exact_s
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.two_level import Local, Pattern


@dataclass(frozen=True)
class Lever:
    """One thing that could be improved.

    Attributes:
        value: what it is now, in seconds; the failure rate in failures a second.
        elasticity: d ln goodput / d ln value at the present interval: -0.05 loses 5% of goodput for each doubling, in
            small.
        halved_goodput: with the value halved and the interval chosen again.
        gain: how much more work that does in the same time (0.03 is 3%).
    """

    name: str
    value: float
    elasticity: float
    halved_goodput: float
    gain: float


def elasticities(setting: Setting, interval_s: float) -> dict[str, float]:
    """d ln goodput / d ln x, from ln G = ln tau - (R + T_save) / M - ln(M + D) - ln(exp((tau + C) / M) - 1).

    At the best interval they are those of the best goodput as well (envelope theorem).
    """
    mean = setting.mtbf_s
    period = (interval_s + setting.block_s) / mean
    lost = period / -math.expm1(-period)        # of ln(exp(p) - 1), d / d ln p
    restart, write = setting.restart_s / mean, setting.write_s / mean
    return {
        "failure rate": -(restart + write + lost - mean / (mean + setting.wait_s)),
        "save block": -lost * setting.block_s / (interval_s + setting.block_s),
        "save write": -write,
        "restart": -restart,
        "repair wait": -setting.wait_s / (mean + setting.wait_s),
    }


def levers(setting: Setting, interval_s: float, floor_s: float) -> tuple[Lever, ...]:
    """Every lever that does something, the one whose halving brings most first; each alone (spares stay as they are).

    Args:
        floor_s: the shortest interval apart from that of the write, such as a step.
    """
    now = float(goodput(setting, interval_s))
    slopes = elasticities(setting, interval_s)
    found = []
    for name, value, better in halved(setting):
        best = bounded_s(exact_s(better.block_s, better.mtbf_s), max(floor_s, better.write_s))
        then = float(goodput(better, best)) if best > 0 else now
        found.append(Lever(name, value, slopes[name], then, then / now - 1))
    return tuple(sorted(found, key=lambda lever: -lever.gain))


def two_level_levers(remote: Setting, local: Local, pattern: Pattern, floor_s: float) -> tuple[Lever, ...]:
    """The same of two levels; elasticities by central differences at the present pattern."""
    now = two_level.goodput(remote, local, pattern)
    found = []
    for name, value, better in halved(remote):
        slope = _slope(lambda f, name=name: two_level.goodput(scaled(remote, name, f), local, pattern))
        then = two_level.goodput(better, local, two_level.best(better, local, floor_s))
        found.append(Lever(name, value, slope, then, then / now - 1))
    for name, value in (("local save block", local.block_s), ("local restart", local.restart_s)):
        if value <= 0:
            continue
        key = "block_s" if name == "local save block" else "restart_s"
        slope = _slope(lambda f, k=key, v=value: two_level.goodput(remote, replace(local, **{k: v * f}), pattern))
        less = replace(local, **{key: value / 2})
        then = two_level.goodput(remote, less, two_level.best(remote, less, floor_s))
        found.append(Lever(name, value, slope, then, then / now - 1))
    return tuple(sorted(found, key=lambda lever: -lever.gain))


FIELDS = {"save block": "block_s", "save write": "write_s", "restart": "restart_s", "repair wait": "wait_s"}


def scaled(setting: Setting, name: str, factor: float) -> Setting:
    """The setting with one lever's value times a factor."""
    if name == "failure rate":
        return replace(setting, mtbf_s=setting.mtbf_s / factor)
    return replace(setting, **{FIELDS[name]: getattr(setting, FIELDS[name]) * factor})


def halved(setting: Setting) -> Iterator[tuple[str, float, Setting]]:
    """(name, value, the setting with half of it) of each lever that does something."""
    values = {"failure rate": 1 / setting.mtbf_s, **{name: getattr(setting, f) for name, f in FIELDS.items()}}
    for name, value in values.items():
        if value > 0:
            yield name, value, scaled(setting, name, 0.5)


def _slope(goodput_of: Callable[[float], float], step: float = 1e-4) -> float:
    """d ln goodput / d ln x at a factor of 1."""
    up, down = goodput_of(1 + step), goodput_of(1 - step)
    return (math.log(up) - math.log(down)) / (math.log1p(step) - math.log1p(-step))
