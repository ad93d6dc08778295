"""What a profile does not tell, and why: one sentence each, with what to do about it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence

import numpy as np

from jaxplan.errors import InputError
from jaxplan.profile.readers.form import EXECUTIONS, STEPS_LINE, main_program
from jaxplan.profile.xplane import PS, Space
from jaxplan.units import format_seconds

COMPILE = "backend_compile"       # JAX's own mark on the host's thread (jax 0.10.2)
OTHER_SHARE = 0.05      # chosen: other programs that take less of the devices' time are not worth a word
METADATA = "/host:metadata"
DEVICE = re.compile(r"/device:(\w+):\d+")
PRIVILEGES = re.compile(r"privilege|permission|CUPTI", re.IGNORECASE)


def about_files(spaces: Sequence[Space]) -> list[str]:
    """Files that are cut off, and what the profiler itself complained of."""
    notes = [f"{space.path.name}: {space.cut}; what came before is read" for space in spaces if space.cut]
    return notes + [f"the profiler said: {said}" for space in spaces for said in space.said]


def about_versions(versions: Mapping[str, str]) -> list[str]:
    """A profile that another version of JAX wrote."""
    written = versions.get("jax_version", "")
    try:
        here = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return []
    if not written or written == here:
        return []
    return [f"jax {written} wrote the profile, {here} is installed here: plans compiled here may differ from what ran"]


def about_steps(steps_from: str, count: int, program: str) -> list[str]:
    """Steps that no annotation tells apart."""
    if steps_from == EXECUTIONS:
        said = f"no step annotations: every execution of {program or 'the program'} counts as a step"
        return [f"{said} (jax.profiler.StepTraceAnnotation around each step tells exactly)"]
    if steps_from == STEPS_LINE:
        return ["steps carry no numbers: they are numbered as they come"]
    return [] if count else ["no operation lies in a step that all hosts have"]


def about_compiles(spaces: Sequence[Space], windows_ps: np.ndarray, steps: Sequence[int]) -> list[str]:
    """Programs that were compiled while the profiler ran: the steps that waited for them are no measurement."""
    found: dict[int, float] = {}
    for host, space in enumerate(spaces):
        for plane in space.planes:
            rows = [row for row, name in enumerate(plane.names) if name.startswith(COMPILE)]
            for event in np.flatnonzero(np.isin(plane.metadata, rows)):
                at = int(plane.start_ps[event])
                inside = np.flatnonzero((windows_ps[host, :, 0] <= at) & (at < windows_ps[host, :, 1]))
                for row in inside.tolist():
                    found[steps[row]] = found.get(steps[row], 0.0) + float(plane.duration_ps[event]) * PS
    if not found:
        return []
    told = ", ".join(f"{step} ({format_seconds(spent)})" for step, spent in list(found.items())[:3])
    return [f"programs were compiled in the profile, in step {told}: run every program once before it starts"]


def about_programs(names: Sequence[str], program: np.ndarray, duration_ps: np.ndarray) -> list[str]:
    """Programs beside the one that takes most time: two runs in one profile, an evaluation, work between steps."""
    spent = np.bincount(program, weights=duration_ps, minlength=len(names))
    main = main_program(program, duration_ps, names)
    shares = spent / max(spent.sum(), 1.0)
    others = [i for i in np.argsort(-shares) if i != main and shares[i] >= OTHER_SHARE]
    if not others:
        return []
    told = ", ".join(f"{names[i] or 'unnamed'} {shares[i]:.0%}" for i in others[:3])
    return [f"the devices also ran other programs than {names[main]} (share of their operations' time: {told})"]


def nothing(spaces: Sequence[Space]) -> InputError:
    """The message of a profile without operations of devices: what is in it, and the likely reason."""
    where = spaces[0].path if len(spaces) == 1 else spaces[0].path.parent
    said = [text for space in spaces for text in space.said]
    cut = [space.cut for space in spaces if space.cut]
    planes = [plane for space in spaces for plane in space.planes]
    programs = sum(1 for plane in planes for _ in plane.metadata_bytes("Hlo Proto"))
    events = sum(plane.count for plane in planes)
    holds = f"{len(planes)} planes, {events:,} events, {programs} programs' HLO"
    if cut:
        what = f"{where}: {cut[0]}; what is left ({holds}) has no operations"
        return InputError(what, "a whole file", "copying it again")
    if said or any(DEVICE.match(plane.name) for plane in planes):
        why = f": the profiler said: {said[0]}" if said else ""
        return InputError(
            f"{where} has no operations of its devices ({holds}){why}",
            "kernels on the devices' lines",
            "a process that may profile the GPU (as root, or with the driver's NVreg_RestrictProfilingToAdminUsers=0)",
        )
    if programs and {plane.name for plane in planes} == {METADATA}:
        return InputError(
            f"{where} holds programs that were compiled ({programs}), and nothing that ran",
            "a profile of steps",
            "`jaxplan run plan.json`, which runs a few steps and profiles them",
        )
    if not events:
        return InputError(
            f"{where} has no operations ({holds})",
            "a profile of a program that ran, with the host's events",
            "jax.profiler.ProfileOptions with host_tracer_level of at least 1: without, a CPU's operations are lost",
        )
    return InputError(
        f"{where} has no operations of devices ({holds})",
        "steps that ran while the profiler did",
        "jax.block_until_ready on the last step's result before jax.profiler.stop_trace()",
    )
