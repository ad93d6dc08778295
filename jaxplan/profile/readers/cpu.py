"""Profiles of the host platform (`JAX_PLATFORMS=cpu`): HLO operations are events on worker threads.

There is no device plane. An operation is an event of `/host:CPU` with the statistics `hlo_op`, `hlo_module`,
`program_id`, `run_id`, `device_ordinal`, whatever thread it is on; one device's operations wander between threads.
Operations nest: a loop's event covers those of its body. A step annotation is an event with `step_num`, and the
executions launched inside it are events on its thread that carry their `run_id` (jaxlib 0.10.2 and 0.12.0). A program
of one device has no such event: where there are as many annotations as executions, they belong together in order.
"""

from __future__ import annotations

import numpy as np

from jaxplan.profile.readers.form import (
    ANNOTATIONS,
    EXECUTIONS,
    NO_STEP,
    Codes,
    HostTrace,
    interval_of,
    main_program,
    numbered_runs,
    programs_of,
)
from jaxplan.profile.xplane import ABSENT, Plane, Space

PLANE = "/host:CPU"


def applies(space: Space) -> bool:
    """Whether a host's threads carry HLO operations."""
    plane = space.plane(PLANE)
    return plane is not None and bool((plane.texts("hlo_op")[0] != ABSENT).any())


def read(space: Space) -> HostTrace:
    """The operations of the host's virtual devices."""
    plane = space.plane(PLANE)
    assert plane is not None
    codes, names = plane.texts("hlo_op")
    at = np.flatnonzero(codes != ABSENT)
    programs = Codes()
    program = programs_of(plane, at, programs)
    run, device = plane.integers("run_id")[at], plane.integers("device_ordinal")[at]
    start, duration = plane.start_ps[at], plane.duration_ps[at]
    step_of_run, starts = _steps(plane)
    step, steps_from = _lookup(run, step_of_run), ANNOTATIONS
    if not (step != NO_STEP).any():
        main = main_program(program, duration, [name for name, _ in programs.values])
        step = numbered_runs(run, start, program == main)
        if len(starts) == step.max(initial=NO_STEP) + 1:
            step = _numbered(step, sorted(starts, key=lambda number: starts[number]))
        else:
            steps_from, starts = EXECUTIONS, {}
    return HostTrace(
        device=np.where(device == ABSENT, 0, device),
        track=_line_of_events(plane)[at],
        beside=np.zeros(at.size, bool),
        step=step,
        name=codes[at],
        hint=np.zeros(at.size, np.int64),
        program=program,
        start_ps=start,
        duration_ps=duration,
        named=np.ones(at.size, bool),
        names=tuple(names),
        hints=("",),
        programs=programs.values,
        step_starts=starts,
        steps_from=steps_from,
    )


def _line_of_events(plane: Plane) -> np.ndarray:
    return np.repeat(np.arange(len(plane.lines)), [line.count for line in plane.lines])


def _steps(plane: Plane) -> tuple[dict[int, int], dict[int, int]]:
    """(run -> number of its step, number of a step -> begin of its annotation)."""
    number, run = plane.integers("step_num"), plane.integers("run_id")
    operation = plane.texts("hlo_op")[0] != ABSENT
    step_of_run: dict[int, int] = {}
    starts: dict[int, int] = {}
    for line in plane.lines:
        events = np.arange(line.first, line.first + line.count)
        steps = events[number[events] != ABSENT]
        if not steps.size:
            continue
        steps = steps[np.argsort(plane.start_ps[steps], kind="stable")]
        starts |= dict(zip(number[steps].tolist(), plane.start_ps[steps].tolist(), strict=True))
        launches = events[(run[events] != ABSENT) & ~operation[events]]
        found = interval_of(
            plane.start_ps[steps], plane.start_ps[steps] + plane.duration_ps[steps], plane.start_ps[launches]
        )
        inside = found >= 0
        runs, numbers = run[launches[inside]], number[steps[found[inside]]]
        step_of_run |= dict(zip(runs.tolist(), numbers.tolist(), strict=True))
    return step_of_run, starts


def _numbered(order: np.ndarray, numbers: list[int]) -> np.ndarray:
    """Steps 0, 1, ... under the numbers of their annotations."""
    return np.where(order == NO_STEP, NO_STEP, np.array(numbers, np.int64)[np.maximum(order, 0)])


def _lookup(run: np.ndarray, step_of_run: dict[int, int]) -> np.ndarray:
    unique, inverse = np.unique(run, return_inverse=True)
    steps = np.array([step_of_run.get(int(one), NO_STEP) for one in unique], np.int64)
    return steps[inverse] if run.size else np.zeros(0, np.int64)
