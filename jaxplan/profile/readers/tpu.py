"""Profiles of TPUs: a plane a device, with lines "Steps", "XLA Modules", "XLA Ops" and, in newer ones, "Async XLA Ops".

What is known of an operation (category, program) stands with its name in the plane's metadata; the display name is the
HLO instruction's. Operations of "XLA Ops" nest (a loop covers its body) and run one at a time; "Async XLA Ops" holds
transfers from their start to their end, beside the operations that issue and await them (line names: openxla/xla,
tsl/profiler/utils/xplane_schema.cc). A SparseCore's planes are not read: what runs there shows where it is awaited.
"""

from __future__ import annotations

import re

import numpy as np

from jaxplan.profile.readers.form import (
    ANNOTATIONS,
    EXECUTIONS,
    NO_STEP,
    STEPS_LINE,
    Codes,
    HostTrace,
    interval_of,
    main_program,
    numbered_runs,
    programs_of,
)
from jaxplan.profile.xplane import ABSENT, Line, Plane, Space

PLANE = re.compile(r"/device:TPU:(\d+)$")
STEPS, MODULES, OPERATIONS, BESIDE = "Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"
_MODULE = re.compile(r"(.*)\((\d+)\)$")


def planes(space: Space) -> list[tuple[int, Plane]]:
    """The devices' planes with their numbers."""
    found = [(PLANE.match(plane.name), plane) for plane in space.planes]
    return [(int(match[1]), plane) for match, plane in found if match and _line(plane, OPERATIONS) is not None]


def applies(space: Space) -> bool:
    """Whether a TPU's plane has operations."""
    return bool(planes(space))


def read(space: Space) -> HostTrace:
    """The operations of one host's TPU devices."""
    names, hints, programs = Codes(), Codes(""), Codes()
    parts, starts, words = [], {}, []
    for number, plane in planes(space):
        part, begun, word = _device(number, plane, names, hints, programs)
        parts.append(part)
        words.append(word)
        for step, begin in begun.items():
            starts[step] = min(begin, starts.get(step, begin))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return HostTrace(
        *columns,
        names=names.values,
        hints=hints.values,
        programs=programs.values,
        step_starts=starts,
        steps_from=words[0],
    )


def _line(plane: Plane, name: str) -> Line | None:
    return next((line for line in plane.lines if line.name == name and line.count), None)


def _device(
    number: int, plane: Plane, names: Codes, hints: Codes, programs: Codes
) -> tuple[tuple[np.ndarray, ...], dict[int, int], str]:
    """(columns of a `HostTrace`, begin of each step, what told the steps apart) of one device."""
    lines = [line for line in plane.lines if line.name in (OPERATIONS, BESIDE)]
    events = np.concatenate([np.arange(line.first, line.first + line.count) for line in lines])
    track = np.repeat(np.arange(len(lines)), [line.count for line in lines])
    beside = np.repeat([line.name != OPERATIONS for line in lines], [line.count for line in lines])
    start, duration = _times(plane)
    program, run = _programs(plane, events, start, programs)
    main = main_program(program, duration[events], [name for name, _ in programs.values])
    step, begun, word = _steps(plane, events, start, duration, (program == main) & (run >= 0), run)
    categories, category_names = plane.texts("hlo_category")
    hint_codes = hints.of(category_names)
    name_codes = names.of([name.lstrip("%").split(" ")[0] for name in plane.names])
    chosen = categories[events]
    columns = (
        np.full(events.size, number),
        number * 16 + track,
        beside,
        step,
        name_codes[plane.metadata[events]],
        np.where(chosen == ABSENT, 0, hint_codes[np.maximum(chosen, 0)]),
        program,
        start[events],
        duration[events],
        np.ones(events.size, bool),
    )
    return columns, begun, word


def _times(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """Begin and duration of every event; those that carry only the device's own count of picoseconds have these."""
    offset, own = plane.integers("device_offset_ps"), plane.integers("device_duration_ps")
    bare = (plane.duration_ps == 0) & (own != ABSENT) & (offset != ABSENT)
    return np.where(bare, offset, plane.start_ps), np.where(bare, own, plane.duration_ps)


def _programs(plane: Plane, events: np.ndarray, start: np.ndarray, programs: Codes) -> tuple[np.ndarray, np.ndarray]:
    """(program, execution) of each operation: those of the module's event that it lies in."""
    line = _line(plane, MODULES)
    if line is None:
        return programs_of(plane, events, programs), np.zeros(events.size, np.int64)
    modules = np.arange(line.first, line.first + line.count)
    modules = modules[np.argsort(start[modules], kind="stable")]
    ends = start[modules] + np.maximum(plane.duration_ps[modules], 1)
    inside = interval_of(start[modules], ends, start[events])
    keys = []
    for event in modules:
        match = _MODULE.match(plane.names[plane.metadata[event]])
        keys.append((match[1], int(match[2])) if match else (plane.names[plane.metadata[event]], -1))
    codes = programs.of([*keys, ("", -1)])     # the last is of what lies in no module's event
    return codes[inside], inside


def _steps(
    plane: Plane,
    events: np.ndarray,
    start: np.ndarray,
    duration: np.ndarray,
    main: np.ndarray,
    run: np.ndarray,
) -> tuple[np.ndarray, dict[int, int], str]:
    """(step of each operation, begin of each step, what told them apart)."""
    line = _line(plane, STEPS)
    if line is None:
        return numbered_runs(run, start[events], main), {}, EXECUTIONS
    steps = np.arange(line.first, line.first + line.count)
    steps = steps[np.argsort(start[steps], kind="stable")]
    number = plane.integers("step_num")[steps]
    word = ANNOTATIONS
    if (number == ABSENT).any():
        number, word = np.arange(steps.size), STEPS_LINE
    inside = interval_of(start[steps], start[steps] + duration[steps], start[events])
    begun = dict(zip(number.tolist(), start[steps].tolist(), strict=True))
    return np.where(inside >= 0, number[np.maximum(inside, 0)], NO_STEP), begun, word
