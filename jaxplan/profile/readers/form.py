"""The form into which every platform's reader brings one host's profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxplan.profile.xplane import ABSENT, Plane

NO_STEP = -1
ANNOTATIONS, EXECUTIONS, STEPS_LINE = "step annotations", "executions of the program", "the profiler's steps"


@dataclass(frozen=True)
class HostTrace:
    """Operations of the devices of one host, as columns; n operations.

    Attributes:
        device: int[n], the number that the host gives to the device.
        track: int[n], what runs one operation at a time: a thread, a stream, a line.
        beside: bool[n], whether it is the span of a transfer that runs beside the operations that issue and await it.
        step: int[n], the number of its step; NO_STEP where it belongs to none.
        name: int[n], code in `names`: of the HLO instruction, or of the kernel where that is not known.
        hint: int[n], code in `hints`: what the profiler says about its kind, for what no HLO text tells.
        program: int[n], code in `programs`.
        start_ps, duration_ps: int[n].
        named: bool[n], whether `name` is an HLO instruction's.
        programs: (name, id) of each program; the id is -1 where it is not known.
        step_starts: number of a step -> when it was begun, where that is on record.
        steps_from: what tells the steps apart: one of the three words above.
        notes: what the reader could not tell, one sentence each.
    """

    device: np.ndarray
    track: np.ndarray
    beside: np.ndarray
    step: np.ndarray
    name: np.ndarray
    hint: np.ndarray
    program: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    named: np.ndarray
    names: tuple[str, ...]
    hints: tuple[str, ...]
    programs: tuple[tuple[str, int], ...]
    step_starts: Mapping[int, int] = field(default_factory=dict)
    steps_from: str = ANNOTATIONS
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = ("device", "track", "beside", "step", "name", "hint", "program", "start_ps", "duration_ps", "named")
        sizes = {name: getattr(self, name).size for name in columns}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"columns of one length expected, got {sizes}")


class Codes:
    """Values numbered as they come."""

    def __init__(self, *first: Any) -> None:
        self._numbers = {value: number for number, value in enumerate(first)}

    def of(self, values: Sequence[Any]) -> np.ndarray:
        """int[values]: their numbers; of no values one 0, so that what nothing has can be looked up all the same."""
        return np.array([self._numbers.setdefault(value, len(self._numbers)) for value in values] or [0], np.int64)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self._numbers)


def programs_of(plane: Plane, events: np.ndarray, programs: Codes) -> np.ndarray:
    """int[events]: the program of each event, by its statistics `hlo_module` and `program_id`."""
    modules, names = plane.texts("hlo_module")
    keys = np.stack([modules[events], plane.integers("program_id")[events]], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    told = [(names[m] if m != ABSENT else "", int(i) if i != ABSENT else -1) for m, i in unique.tolist()]
    return programs.of(told)[inverse.reshape(-1)]


def interval_of(starts: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """int[times]: the interval (sorted by start, none inside another) that each time lies in; -1 where in none."""
    if not starts.size:
        return np.full(times.size, -1, np.int64)
    at = np.searchsorted(starts, times, side="right") - 1
    return np.where((at >= 0) & (times < ends[np.maximum(at, 0)]), at, -1)


def main_program(program: np.ndarray, duration_ps: np.ndarray, names: Sequence[str]) -> int:
    """The program that the devices spend most time in; one without a name only where none has one."""
    spent = np.bincount(program, weights=duration_ps, minlength=len(names))
    named = np.array([bool(name) for name in names])
    return int(np.argmax(np.where(named, spent, -1.0) if named.any() else spent))


def numbered_runs(run: np.ndarray, start_ps: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """int[n]: steps 0, 1, ... by the runs of the chosen operations, in the order in which they begin."""
    step = np.full(run.size, NO_STEP, np.int64)
    found = np.flatnonzero(chosen)
    if not found.size:
        return step
    unique, inverse = np.unique(run[found], return_inverse=True)
    begin = np.full(unique.size, np.iinfo(np.int64).max)
    np.minimum.at(begin, inverse, start_ps[found])
    rank = np.empty(unique.size, np.int64)
    rank[np.argsort(begin, kind="stable")] = np.arange(unique.size)
    step[found] = rank[inverse]
    return step
