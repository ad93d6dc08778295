"""Every instant of a step given to what the device did then, so that a ledger adds up to its step.

Where several things go on, the instant belongs to compute before collectives, these before copies, these before a
loop's own bookkeeping (`kinds.Class`): what of a collective no compute hides is its exposed part. Things of one class
share an instant equally. An instant without any operation is `host` before the device's first operation of the step
(the host has not launched it yet) and `idle` after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.profile.kinds import Class

HOST, IDLE = "host", "idle"


@dataclass(frozen=True)
class Segments:
    """When which operation ran itself, not one that it covers: int[m] rows of operations, begins and ends."""

    operation: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def self_time(self, count: int) -> np.ndarray:
        """float[count]: picoseconds of each operation without those that it covers."""
        return np.bincount(self.operation, weights=self.end - self.start, minlength=count)


def segments(track: np.ndarray, start: np.ndarray, duration: np.ndarray) -> Segments:
    """The own times of operations: on one track, one that begins before another has ended lies inside that."""
    end = start + duration
    order = np.lexsort((-duration, start, track))
    same = track[order][1:] == track[order][:-1]
    nested = np.zeros(order.size, bool)
    nested[1:] = same & (start[order][1:] < np.maximum.accumulate(end[order])[:-1])
    tracks = np.unique(track[order][nested])
    simple = order[~np.isin(track[order], tracks)]
    owners, starts, ends = [simple], [start[simple]], [end[simple]]
    for one in tracks:
        found = _own(order[track[order] == one], start, end)
        for target, column in zip((owners, starts, ends), found, strict=True):
            target.append(column)
    return Segments(*(np.concatenate(column) for column in (owners, starts, ends)))


def _own(rows: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Own times on one track, whose operations come sorted by begin."""
    out: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int]] = []
    now = 0
    for row, begin, stop in zip(rows.tolist(), start[rows].tolist(), end[rows].tolist(), strict=True):
        while stack and stack[-1][1] <= begin:
            owner, until = stack.pop()
            if until > now:
                out.append((owner, now, until))
                now = until
        if stack and begin > now:
            out.append((stack[-1][0], now, begin))
        now = max(now, begin)
        stack.append((row, stop))
    while stack:
        owner, until = stack.pop()
        if until > now:
            out.append((owner, now, until))
            now = until
    columns = np.array(out, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


@dataclass(frozen=True)
class Shares:
    """What one device did at every instant.

    Attributes:
        by_step: float[steps, labels + 2], seconds in ps; the last two columns are host and idle.
        bounds: int[k + 1], the instants at which something changes.
        computing: float[k + 1], time spent in compute until each of them.
    """

    by_step: np.ndarray
    bounds: np.ndarray
    computing: np.ndarray

    def hidden(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """How much of these spans compute covers."""
        return np.interp(end, self.bounds, self.computing) - np.interp(start, self.bounds, self.computing)


def shares(
    label: np.ndarray,
    group: Sequence[Class],
    start: np.ndarray,
    end: np.ndarray,
    windows: np.ndarray,
    first: np.ndarray,
) -> Shares:
    """Give every instant of the windows to labels.

    Args:
        label: int[m], of segments of one device; group: the class of each label.
        start, end: int[m].
        windows: int[steps, 2], one after the other.
        first: int[steps], begin of the device's first operation of each step.
    """
    bounds = np.unique(np.concatenate([start, end, windows.reshape(-1), first]))
    span = np.diff(bounds).astype(float)
    step = np.searchsorted(windows[:, 0], bounds[:-1], side="right") - 1
    inside = (step >= 0) & (bounds[:-1] < windows[np.maximum(step, 0), 1])
    waiting = bounds[:-1] < first[np.maximum(step, 0)]
    by_step = np.zeros((len(windows), len(group) + 2))

    def give(column: int, time: np.ndarray) -> None:
        by_step[:, column] = np.bincount(step[inside], weights=time[inside], minlength=len(windows))

    free = span.copy()      # of each stretch between two bounds what nobody has yet
    computing = np.zeros(span.size)
    begin, stop = np.searchsorted(bounds, start), np.searchsorted(bounds, end)
    for one in Class:
        active = {
            row: _active(begin[label == row], stop[label == row], span.size)
            for row, belongs in enumerate(group)
            if belongs is one
        }
        total = sum(active.values(), np.zeros(span.size, np.int32))
        each = free / np.maximum(total, 1)
        for row, count in active.items():
            give(row, count * each)
        if one is Class.COMPUTE:
            computing = (total > 0) * span
        free = free * (total == 0)
    give(len(group), free * waiting)
    give(len(group) + 1, free * ~waiting)
    return Shares(by_step, bounds, np.concatenate([[0.0], np.cumsum(computing)]))


def _active(begin: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """int32[count]: how many stretches, from bound `begin` to bound `stop` each, cover every one of the smallest."""
    change = np.bincount(begin, minlength=count + 1) - np.bincount(stop, minlength=count + 1)
    return np.cumsum(change, dtype=np.int32)[:-1]
