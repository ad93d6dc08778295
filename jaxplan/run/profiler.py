"""JAX's profiler around a few steps, at the least that still holds operations. Imports JAX when called."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SESSION = "run"             # the session's name, so that links to it are known beforehand
HOST_TRACER_LEVEL = 1       # at 0 a CPU's operations are lost; Python's own calls are never traced
ENDING = ".xplane.pb"


@dataclass
class Profile:
    """What became of a profile.

    Attributes:
        path: where it lies; None where there is none.
        problem: why there is none.
    """

    path: Path | None = None
    problem: str = ""


@contextmanager
def profiled(folder: Path, process: int) -> Iterator[Profile]:
    """Profiles what runs inside into `folder/plugins/profile/SESSION/HOST.xplane.pb`, whole or not at all.

    Processes after the first add their number to the name: several may run on one host. A profiler that cannot start or
    write costs the profile, never the run.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, HOST_TRACER_LEVEL
    options.session_id = SESSION
    found, place = Profile(), folder / f".profile-{process}"
    try:
        jax.profiler.start_trace(place, profiler_options=options)
    except Exception as error:
        found.problem = f"the profiler does not start: {_first(error)}"
        yield found
        return
    try:
        yield found
    finally:
        try:
            jax.profiler.stop_trace()
            (file,) = place.glob(f"plugins/profile/*/*{ENDING}")
            name = file.name if process == 0 else f"{file.name.removesuffix(ENDING)}-{process}{ENDING}"
            path = folder / "plugins" / "profile" / SESSION / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file.rename(path)
            found.path = path
        except Exception as error:
            found.problem = f"the profile cannot be written: {_first(error)}"
        shutil.rmtree(place, ignore_errors=True)


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
