"""A profile of any platform in one form: per device, step and operation, when it ran and for how long.

Steps tile the time: one lasts from the end of the last operation of the step before it to the end of its own last
operation, so that waiting for the host between steps belongs to the step that waits. The first begins with its
annotation, or, where there is none, with its first operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxplan.errors import InputError
from jaxplan.profile.faults import (
    METADATA,
    about_compiles,
    about_files,
    about_programs,
    about_steps,
    about_versions,
    nothing,
)
from jaxplan.profile.messages import WireError
from jaxplan.profile.readers import cpu, gpu, tpu
from jaxplan.profile.readers.form import NO_STEP, Codes, HostTrace, main_program
from jaxplan.profile.xplane import ABSENT, PS, SUFFIX, Space, load

__all__ = ["Device", "Program", "Trace", "read"]

TRACKS_OF_A_HOST = 1 << 20
COLUMNS = ("device", "track", "beside", "step", "name", "hint", "program", "start_ps", "duration_ps", "named")
READERS = {"tpu": tpu, "gpu": gpu, "cpu": cpu}      # a host with accelerators has threads with operations, too
HOW = "jax.profiler.start_trace(folder) around a few steps, each in a jax.profiler.StepTraceAnnotation"


@dataclass(frozen=True)
class Device:
    """A device: which host it belongs to (a row of `Trace.hosts`), and its number there."""

    host: int
    ordinal: int


@dataclass(frozen=True)
class Program:
    """A compiled program that ran, with its HLO proto where the profile holds it (`HloProto`, serialized)."""

    name: str
    ident: int
    proto: bytes = b""


@dataclass(frozen=True, eq=False)
class Trace:
    """Operations of all devices as columns (`readers.form.HostTrace` tells the fields); times in picoseconds.

    Attributes:
        device: int[n], row of `devices`; track: int[n], unique between hosts.
        step: int[n], row of `steps`, or NO_STEP; program: int[n], row of `programs`.
        steps: the steps' numbers, in order of time.
        windows_ps: int[hosts, steps, 2], begin and end of each step by each host's clock.
        main: the row of the program that the devices spend most time in.
        versions: of what wrote the profile.
        notes: what the profile does not tell, or tells in another way than usual; one sentence each.
    """

    platform: str
    paths: tuple[Path, ...]
    hosts: tuple[str, ...]
    devices: tuple[Device, ...]
    programs: tuple[Program, ...]
    main: int
    names: tuple[str, ...]
    hints: tuple[str, ...]
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
    steps: tuple[int, ...]
    windows_ps: np.ndarray
    steps_from: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def step_s(self) -> tuple[float, ...]:
        """Seconds of each step, the mean over hosts."""
        spans = (self.windows_ps[:, :, 1] - self.windows_ps[:, :, 0]).mean(axis=0)
        return tuple((spans * PS).tolist())


def read(path: Path) -> Trace:
    """The trace of a profile.

    Args:
        path: an xplane.pb file, the folder of one session, or a folder with `plugins/profile/SESSION/` below it (the
            latest session that holds operations counts).

    Raises:
        InputError: there is no profile, it cannot be read, or it holds no operations of devices.
    """
    sessions = _sessions(path)
    problems: list[InputError] = []
    for files in reversed(sessions):
        try:
            trace = _trace([load(file) for file in files])
        except InputError as error:
            problems.append(error)
            continue
        except WireError as error:
            problems.append(InputError(f"{files[0]} is damaged ({error})", "a whole file", "copying it again"))
            continue
        others = [other[0].parent.name for other in sessions if other is not files]
        if not others:
            return trace
        note = f"{path} holds {len(sessions)} sessions; {files[0].parent.name} is read, not {', '.join(others[-3:])}"
        return replace(trace, notes=(note, *trace.notes))
    raise problems[0]


def _sessions(path: Path) -> list[list[Path]]:
    """The files of each session, the latest last."""
    try:
        if path.is_file():
            return [[path]]
        if not path.exists():
            raise InputError(f"{path} is not there", "a profile's folder or an xplane.pb", HOW)
        found = sorted(path.glob(f"*{SUFFIX}")) or sorted(path.glob(f"**/plugins/profile/*/*{SUFFIX}"))
        sessions: dict[Path, list[Path]] = {}
        for file in found:
            sessions.setdefault(file.parent, []).append(file)
        if not sessions:
            raise InputError(f"{path} holds no profile", f"plugins/profile/SESSION/HOST{SUFFIX} in it", HOW)
        return sorted(sessions.values(), key=lambda files: max(file.stat().st_mtime_ns for file in files))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "a profile that you may read") from error


def _trace(spaces: Sequence[Space]) -> Trace:
    """The hosts of one session together.

    Raises:
        InputError: none of them has operations.
    """
    found: list[tuple[Space, str, HostTrace]] = []
    for space in spaces:
        platform = next((name for name, reader in READERS.items() if reader.applies(space)), None)
        if platform is not None:
            found.append((space, platform, READERS[platform].read(space)))
    if not found:
        raise nothing(spaces)
    parts = [part for _, _, part in found]
    merged, devices, names, hints, programs = _together(parts)
    steps, windows, rows = _windows(parts, merged, devices)
    merged["step"] = rows
    main = main_program(merged["program"], merged["duration_ps"], [name for name, _ in programs])
    protos = _protos([space for space, _, _ in found])
    known = tuple(_program(name, ident, protos) for name, ident in programs)
    versions = _versions(spaces)
    notes = [note for part in parts for note in part.notes] + about_files(spaces) + about_versions(versions)
    notes += about_steps(parts[0].steps_from, len(steps), known[main].name)
    notes += about_compiles([space for space, _, _ in found], windows, steps)
    notes += about_programs([program.name for program in known], merged["program"], merged["duration_ps"])
    return Trace(
        platform=found[0][1],
        paths=tuple(space.path for space in spaces),
        hosts=tuple(space.hostname for space, _, _ in found),
        devices=devices,
        programs=known,
        main=main,
        names=names,
        hints=hints,
        steps=steps,
        windows_ps=windows,
        steps_from=parts[0].steps_from,
        versions=versions,
        notes=tuple(notes),
        **merged,
    )


def _together(
    parts: Sequence[HostTrace],
) -> tuple[dict[str, np.ndarray], tuple[Device, ...], tuple[str, ...], tuple[str, ...], tuple[tuple[str, int], ...]]:
    """(columns of all hosts, devices, names, hints, programs): what several hosts name is numbered once."""
    names, hints, programs, devices = (Codes() for _ in range(4))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for host, part in enumerate(parts):
        ordinals, inverse = np.unique(part.device, return_inverse=True)
        own = {
            "device": devices.of([Device(host, int(one)) for one in ordinals])[inverse],
            "track": part.track + host * TRACKS_OF_A_HOST,
            "name": names.of(part.names)[part.name],
            "hint": hints.of(part.hints)[part.hint],
            "program": programs.of(part.programs)[part.program],
        }
        for name, target in columns.items():
            target.append(own[name] if name in own else getattr(part, name))
    merged = {name: np.concatenate(column) for name, column in columns.items()}
    return merged, devices.values, names.values, hints.values, programs.values


def _windows(
    parts: Sequence[HostTrace], merged: Mapping[str, np.ndarray], devices: Sequence[Device]
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """(numbers of the steps, their windows by host, row of each operation's step).

    Steps that not every host has (the profile began or ended in their midst) are left out.
    """
    host_of_device = np.array([device.host for device in devices])
    host = host_of_device[merged["device"]]
    begin, end = merged["start_ps"], merged["start_ps"] + merged["duration_ps"]
    numbers = [set(np.unique(part.step[part.step != NO_STEP]).tolist()) for part in parts]
    shared = sorted(set.intersection(*numbers))
    rows = np.searchsorted(np.array(shared, np.int64), merged["step"])
    known = np.isin(merged["step"], shared)
    cells = host[known] * len(shared) + rows[known]
    last = np.full(len(parts) * len(shared), np.iinfo(np.int64).min)
    first = np.full(last.size, np.iinfo(np.int64).max)
    np.maximum.at(last, cells, end[known])
    np.minimum.at(first, cells, begin[known])
    last, first = last.reshape(len(parts), -1), first.reshape(len(parts), -1)
    order = np.argsort(last[0], kind="stable")
    last, first = np.maximum.accumulate(last[:, order], axis=1), first[:, order]
    windows = np.stack([np.concatenate([first[:, :1], last[:, :-1]], axis=1), last], axis=2)
    for h, part in enumerate(parts):
        if shared and shared[order[0]] in part.step_starts:
            windows[h, 0, 0] = min(first[h, 0], part.step_starts[shared[order[0]]])
    rank = np.empty(len(shared), np.int64)
    rank[order] = np.arange(len(shared))
    row = np.where(known, rank[np.minimum(rows, len(shared) - 1)], NO_STEP) if shared else np.full_like(rows, NO_STEP)
    return tuple(int(shared[i]) for i in order), windows, row


def _protos(spaces: Sequence[Space]) -> dict[tuple[str, int], bytes]:
    """The HLO protos that a profile holds, by program's name and id."""
    out: dict[tuple[str, int], bytes] = {}
    for space in spaces:
        plane = space.plane(METADATA)
        if plane is None:
            continue
        idents = plane.metadata_integers("program_id")
        for row, proto in plane.metadata_bytes("Hlo Proto"):
            name, _, number = plane.names[row].rpartition("(")
            ident = int(idents[row]) if idents[row] != ABSENT else int(number.rstrip(")") or -1)
            out[name, ident] = proto
    return out


def _program(name: str, ident: int, protos: Mapping[tuple[str, int], bytes]) -> Program:
    exact = protos.get((name, ident))
    alike = [proto for (other, _), proto in protos.items() if other == name] if exact is None else []
    return Program(name, ident, exact or (alike[0] if len(alike) == 1 else b""))


def _versions(spaces: Sequence[Space]) -> dict[str, str]:
    planes = [plane for plane in (space.plane(METADATA) for space in spaces) if plane is not None]
    stats = planes[0].stats if planes else {}
    return {name: str(value) for name, value in stats.items() if name.endswith("_version")}
