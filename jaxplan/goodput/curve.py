"""Goodput over the interval between saves, for charts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxplan.goodput import simulation
from jaxplan.goodput.failures import Law
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.simulation import Simulated

AROUND = 30         # chosen: the curve goes that many times below and above the interval that was chosen
POINTS, CHECKED = 81, 7
FAILURES = 20_000   # chosen: of each checked point: bands of a few tenths of a percent


@dataclass(frozen=True)
class Curve:
    """Intervals in seconds, ascending; goodput of each; some of them simulated."""

    interval_s: tuple[float, ...]
    goodput: tuple[float, ...]
    checked: tuple[tuple[float, Simulated], ...] = ()


def curve(goodput_of: Callable[[float], float], interval_s: float, floor_s: float) -> Curve:
    """The closed form on a logarithmic grid, not below the floor; the interval itself is on it."""
    grid = np.geomspace(max(floor_s, interval_s / AROUND), interval_s * AROUND, POINTS)
    grid = np.unique(np.append(grid, interval_s))
    return Curve(tuple(map(float, grid)), tuple(goodput_of(float(x)) for x in grid))


def checked(found: Curve, setting: Setting, seed: int, confidence: float) -> Curve:
    """The same with some points simulated."""
    places = np.linspace(0, len(found.interval_s) - 1, CHECKED).round().astype(int)
    points = tuple(
        (found.interval_s[i], simulation.goodput(setting, found.interval_s[i], Law(), FAILURES, seed, confidence))
        for i in places
    )
    return Curve(found.interval_s, found.goodput, points)
