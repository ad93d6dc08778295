"""Profiles of GPUs: a plane a device, a line a stream, an event a kernel or copy.

Lines are called "Stream #13(Kernel)"; a kernel's event has the kernel's name, and the statistics `hlo_op`,
`hlo_module`, `program_id` from XLA's annotation, `correlation_id`, which the host's launching event shares, and
`kernel_details`; copies have `memcpy_details` (openxla/xla, xla/backends/profiler/gpu/cupti_collector.cc). Lines that
viewers derive ("XLA Ops", "Steps") are not in the file that JAX writes; where they are they say the same again.

Kernels that a command buffer (a CUDA graph) launches carry `cuda_graph_id` and mostly no instruction's name
(openxla/xprof issues 2544 and 3070): they are kept under the kernel's name, and said.
"""

from __future__ import annotations

import re

import numpy as np

from jaxplan.profile.readers.form import (
    ANNOTATIONS,
    EXECUTIONS,
    NO_STEP,
    Codes,
    HostTrace,
    main_program,
    programs_of,
)
from jaxplan.profile.xplane import ABSENT, Line, Plane, Space

PLANE = re.compile(r"/device:GPU:(\d+)$")
STREAM = "Stream #"
COMMAND_BUFFER = "command_buffer"
GRAPH_STATS = ("cuda_graph_id", "cuda_graph_exec_id")
NO_GRAPHS = "XLA_FLAGS=--xla_gpu_enable_command_buffer="


def planes(space: Space) -> list[tuple[int, Plane]]:
    """The devices' planes with their numbers."""
    found = [(PLANE.match(plane.name), plane) for plane in space.planes]
    return [(int(match[1]), plane) for match, plane in found if match and _streams(plane)]


def applies(space: Space) -> bool:
    """Whether a GPU's plane has streams with events."""
    return bool(planes(space))


def _streams(plane: Plane) -> list[Line]:
    return [line for line in plane.lines if line.name.startswith(STREAM) and line.count]


def read(space: Space) -> HostTrace:
    """The kernels and copies of one host's GPUs."""
    names, hints, programs = Codes(), Codes(""), Codes()
    parts, correlations = [], []
    hidden_ps = total_ps = 0
    for number, plane in planes(space):
        columns, correlation, hidden = _device(number, plane, names, hints, programs)
        parts.append(columns)
        correlations.append(correlation)
        hidden_ps += int(columns[-2][hidden].sum())
        total_ps += int(columns[-2].sum())
    device, track, name, hint, program, start, duration, named = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    main = main_program(program, duration, [known for known, _ in programs.values])
    unnamed = np.array([not known for known, _ in programs.values])[program]
    correlation = np.concatenate(correlations)
    step, starts, word, notes = _steps(space, correlation, device, name, program == main, unnamed, start)
    if hidden_ps:
        notes += (
            f"{hidden_ps / total_ps:.0%} of the devices' time is in command buffers (CUDA graphs), which hide the HLO "
            "operations: their kernels are told apart by name only. Profile with "
            f"{NO_GRAPHS} to see them (its step time is not production's)",
        )
    return HostTrace(
        device, track, np.zeros(device.size, bool), step, name, hint, program, start, duration, named,
        names.values, hints.values, programs.values, starts, word, notes,
    )  # fmt: skip


def _device(
    number: int, plane: Plane, names: Codes, hints: Codes, programs: Codes
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """(columns, correlation ids, which operations a graph hides) of one device."""
    lines = _streams(plane)
    events = np.concatenate([np.arange(line.first, line.first + line.count) for line in lines])
    track = np.repeat(np.arange(len(lines)), [line.count for line in lines]) + 256 * number
    said, texts = plane.texts("hlo_op")
    said = said[events]
    graphs = np.zeros(events.size, bool)
    for stat in GRAPH_STATS:
        graphs |= np.maximum(plane.integers(stat)[events], 0) > 0
    buffers = np.array([text.startswith(COMMAND_BUFFER) for text in texts] or [False])
    in_buffer = (said != ABSENT) & buffers[np.maximum(said, 0)]
    named = (said != ABSENT) & ~in_buffer
    kernels, kernel_hints, operations = names.of(plane.names), hints.of(plane.names), names.of(texts)
    row = plane.metadata[events]
    return (
        (
            np.full(events.size, number),
            track,
            np.where(named, operations[np.maximum(said, 0)], kernels[row]),
            kernel_hints[row],
            programs_of(plane, events, programs),
            plane.start_ps[events],
            plane.duration_ps[events],
            named,
        ),
        plane.integers("correlation_id")[events],
        ~named & (graphs | in_buffer),
    )


def _steps(
    space: Space,
    correlation: np.ndarray,
    device: np.ndarray,
    name: np.ndarray,
    main: np.ndarray,
    unnamed: np.ndarray,
    start: np.ndarray,
) -> tuple[np.ndarray, dict[int, int], str, tuple[str, ...]]:
    """(step of each operation, begin of each step, what told them apart, notes).

    A kernel belongs to the step whose annotation was the last to begin before the host launched it. Without that, to
    the execution of the main program that it is part of, or, for copies and what else is no program's, that last began.
    """
    annotations = _annotations(space)
    launched = _launches(space, correlation)
    if annotations and (launched != ABSENT).any():
        begins = np.array([begin for begin, _ in annotations])
        numbers = np.array([number for _, number in annotations])
        at = np.searchsorted(begins, launched, side="right") - 1
        step = np.where((launched != ABSENT) & (at >= 0), numbers[np.maximum(at, 0)], NO_STEP)
        return step, {number: begin for begin, number in annotations}, ANNOTATIONS, ()
    step = np.full(device.size, NO_STEP, np.int64)
    for one in np.unique(device):
        chosen = np.flatnonzero((device == one) & main)
        step[chosen] = _executions(name[chosen], start[chosen])
        begins = np.unique(step[chosen], return_index=True)[1]
        beside = np.flatnonzero((device == one) & unnamed & ~main)
        after = np.searchsorted(np.sort(start[chosen][begins]), start[beside], side="right") - 1
        step[beside] = np.where(after >= 0, after, NO_STEP)
    notes: tuple[str, ...] = ()
    if annotations:
        notes = ("the host's launches are not in the profile: steps are told apart by the operations that come back",)
    return step, {}, EXECUTIONS, notes


def _annotations(space: Space) -> list[tuple[int, int]]:
    """(begin, number) of every step annotation of the host's threads, by begin."""
    found: set[tuple[int, int]] = set()
    for plane in space.planes:
        if plane.name.startswith("/host:") and plane.count:
            number = plane.integers("step_num")
            at = np.flatnonzero(number != ABSENT)
            found |= set(zip(plane.start_ps[at].tolist(), number[at].tolist(), strict=True))
    return sorted(found)


def _launches(space: Space, correlation: np.ndarray) -> np.ndarray:
    """When the host launched each operation; ABSENT where the profile does not tell."""
    keys, times = [], []
    for plane in space.planes:
        if plane.name.startswith("/host:") and plane.count:
            found = plane.integers("correlation_id")
            at = np.flatnonzero(found != ABSENT)
            keys.append(found[at])
            times.append(plane.start_ps[at])
    key = np.concatenate(keys) if keys else np.zeros(0, np.int64)
    if not key.size:
        return np.full(correlation.size, ABSENT, np.int64)
    time = np.concatenate(times)
    order = np.argsort(key, kind="stable")
    key, time = key[order], time[order]
    at = np.minimum(np.searchsorted(key, correlation), key.size - 1)
    return np.where((key[at] == correlation) & (correlation != ABSENT), time[at], ABSENT)


def _executions(name: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Number of the execution that each operation of one program on one device belongs to.

    What lies outside of all loops runs once an execution: an execution begins with the earliest of the rarest names.
    """
    order = np.argsort(start, kind="stable")
    unique, inverse, counts = np.unique(name[order], return_inverse=True, return_counts=True)
    rare = np.flatnonzero(counts == counts.min())
    first = min(rare, key=lambda one: int(np.flatnonzero(inverse == one)[0])) if unique.size else 0
    begins = np.flatnonzero(inverse == first)
    out = np.empty(name.size, np.int64)
    out[order] = np.maximum(np.searchsorted(begins, np.arange(name.size), side="right") - 1, 0)
    return out
