"""What works here: versions, compilers proven by compiling, cores, memory, disk. No JAX in this process."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxplan.compile import host
from jaxplan.compile.cache import Cache
from jaxplan.compile.environment import (
    PLATFORMS,
    Platform,
    available,
    environment,
    required_version,
    version,
)
from jaxplan.compile.pool import WorkerPool
from jaxplan.compile.worker import Job, Outcome
from jaxplan.machine import catalogue
from jaxplan.units import GIB, format_bytes

State = Literal["ok", "missing", "broken"]

MINIMUM_PYTHON = (3, 11)
MINIMUM = {     # as pyproject.toml requires them
    "jax": "0.10.2",
    "flax": "0.12.8",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.8",
    "numpy": "2.0",
}
TESTED_JAX = ("0.10.2", "0.12.0")       # minor versions that the tests run on
MOVE_CACHE = "export JAXPLAN_CACHE=/some/other/folder"
PROFILING = ("tensorboard", "tensorboard-plugin-profile")

# The smallest machine with a real interconnect for each compiler; the host's takes any.
PROBES: dict[Platform, tuple[str, str]] = {
    "cpu": ("2x2", "v5e"),
    "tpu": ("2x2", "v5e"),
    "cuda": ("1x8", "h100"),
}
PROBE_LIMIT_S = 180.0
LITTLE_MEMORY_BYTES = 8 * GIB       # a 70B model for 16,384 GPUs compiles in 2 GB; jaxlib and libtpu take 1
LITTLE_DISK_BYTES = GIB


@dataclass(frozen=True)
class Check:
    """One thing that works here, is missing, or is broken.

    Attributes:
        required: whether jaxplan is of no use without it.
        detail: the version or figure; where it is not ok, why.
        fix: what to do about it, ready to paste where possible.
        seconds: how long the proof took; None where nothing was run.
    """

    name: str
    state: State
    detail: str
    fix: str = ""
    required: bool = False
    seconds: float | None = None


def examine(cache: Cache | None = None, limit_s: float = PROBE_LIMIT_S) -> Iterator[Check]:
    """All checks, each as soon as it is known; the compilers are proven in workers."""
    cache = Cache() if cache is None else cache
    with WorkerPool(2) as pool:
        probes: dict[Platform, Future[Outcome] | None] = {p: _probe(pool, p, limit_s) for p in PLATFORMS}
        yield _python()
        yield from (_package(name) for name in MINIMUM)
        yield _jaxlib()
        yield _host()
        yield _disk(cache)
        yield from _notes()
        yield from (_profiling(name) for name in PROFILING)
        for platform, future in probes.items():
            yield _compiler(platform, future)


def works(checks: list[Check]) -> bool:
    """Whether the base works: everything that is required is ok."""
    return all(check.state == "ok" for check in checks if check.required)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _satisfies(found: str, clauses: str) -> bool:
    """Whether a version satisfies `<=a,>=b` (clauses of other kinds are not judged)."""
    for clause in clauses.split(","):
        bound = _numbers(clause)
        if clause.startswith(">=") and _numbers(found) < bound:
            return False
        if clause.startswith("<=") and _numbers(found) > bound:
            return False
    return True


def _python() -> Check:
    said = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info >= MINIMUM_PYTHON:
        return Check("python", "ok", said, required=True)
    wanted = ".".join(map(str, MINIMUM_PYTHON))
    said += f", expected {wanted} or newer"
    return Check("python", "broken", said, f"python{wanted} -m venv .venv", True)


def _package(name: str) -> Check:
    found, wanted = version(name), MINIMUM[name]
    install = f'pip install "{name}>={wanted}"'
    if found is None:
        return Check(name, "missing", "not installed", install, True)
    if _numbers(found) < _numbers(wanted):
        return Check(name, "broken", f"{found}, expected {wanted} or newer", install, True)
    if name == "jax" and not any(found.startswith(tested) for tested in TESTED_JAX):
        return Check(name, "ok", f"{found} (not among the tested: {', '.join(TESTED_JAX)})", required=True)
    return Check(name, "ok", found, required=True)


def _jaxlib() -> Check:
    found, wanted = version("jaxlib"), required_version("jaxlib") or ""
    install = f'pip install "jax=={version("jax") or MINIMUM["jax"]}"'
    if found is None:
        return Check("jaxlib", "missing", "not installed", install, True)
    if not _satisfies(found, wanted):
        said = f"{found} does not go with jax, which wants {wanted}"
        return Check("jaxlib", "broken", said, install, True)
    return Check("jaxlib", "ok", found, required=True)


def _host() -> Check:
    free, cores = host.available_bytes(), host.cores()
    said = f"{cores} cores, {format_bytes(free)} of {format_bytes(host.memory_bytes())} memory free"
    if free < LITTLE_MEMORY_BYTES:
        return Check("host", "ok", f"{said}: little for two compiles", "jaxplan search --jobs 1 ...")
    return Check("host", "ok", said)


def _disk(cache: Cache) -> Check:
    if cache.root is None:
        return Check("cache", "ok", "off (JAXPLAN_CACHE)")
    root: Path = cache.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except OSError as error:
        return Check("cache", "broken", f"{root}: {error.strerror or error}", MOVE_CACHE)
    said = f"{root}, {format_bytes(cache.nbytes())} used, {format_bytes(free)} free"
    if free < LITTLE_DISK_BYTES:
        return Check("cache", "broken", f"{said}: nearly full", MOVE_CACHE)
    return Check("cache", "ok", said)


def _notes() -> Iterator[Check]:
    for note in environment(1, os.environ).notes:
        yield Check("environment", "broken" if "typographic" in note else "ok", note)


def _profiling(name: str) -> Check:
    found = version(name)
    if found is None:
        return Check(name, "missing", "not installed", 'pip install "jaxplan[tensorboard]"')
    return Check(name, "ok", found)


def _probe(pool: WorkerPool, platform: Platform, limit_s: float) -> Future[Outcome] | None:
    """The compile of a tiny program, submitted; None where there is no compiler."""
    if not available(platform).ok:
        return None
    machine = catalogue.machine(*PROBES[platform], None)
    arguments = {"platform": platform, "topology": machine.to_json()}
    place = environment(machine.devices)
    return pool.submit(Job("jaxplan.compile.lower:tiny_job", arguments, place, limit_s))


def _compiler(platform: Platform, future: Future[Outcome] | None) -> Check:
    name, required = f"compiler {platform}", platform == "cpu"
    found = available(platform)
    if future is None:
        state: State = "broken" if found.version else "missing"
        return Check(name, state, found.problem, found.install, required)
    outcome = future.result()
    shape, chip = PROBES[platform]
    target = "this host" if platform == "cpu" else f"{chip} {shape}"
    if not outcome.ok:
        said = f"{found.version}: {outcome.status} for {target}: {outcome.message.partition(chr(10))[0]}"
        return Check(name, "broken", said, found.install, required, outcome.seconds)
    return Check(name, "ok", f"{found.version}, proven for {target}", "", required, outcome.value["seconds"])
