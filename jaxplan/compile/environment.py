"""The environment in which compilers run here, and which compilers are installed. No JAX here.

JAX, XLA and libtpu read their settings once, when they are first imported or started, so a worker gets them
before it imports jax. One environment serves all three compilers: the host's own (with virtual devices),
libtpu and the CUDA plugin compile ahead of time in one process whose JAX runs on the host CPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from jaxplan.errors import MissingError

Platform = Literal["cpu", "tpu", "cuda"]
PLATFORMS: tuple[Platform, ...] = ("cpu", "tpu", "cuda")

# XLA refuses more ("Multiprocess computations aren't implemented on the CPU backend"; jaxlib 0.10.2 and
# 0.12.0).
MAX_HOST_DEVICES = 2048

CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
HOST_DEVICES_FLAG = "--xla_force_host_platform_device_count"

FORCED = {
    "JAX_PLATFORMS": "cpu",                     # never claims an accelerator that may be busy with a real run
    "JAX_ENABLE_COMPILATION_CACHE": "false",    # executables of another target do not load (jax#28908)
    "TF_CPP_MIN_LOG_LEVEL": "0",                # the partitioner's warnings are C++ logging, hidden from 2 on
    "TPU_SKIP_MDS_QUERY": "1",                  # else six tries of 60 s to reach a cloud's metadata server
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",          # else two compiles at once abort on a lock file
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",      # only silences a warning; the topology is named in the call
    "TPU_WORKER_HOSTNAMES": "localhost",        # only silences a warning
    "PYTHONUNBUFFERED": "1",
}
DROPPED = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORM_NAME", "TF_CPP_VMODULE", "TF_CPP_MAX_VLOG_LEVEL")
DECIDING = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")    # the user's variables that change what a compiler does


@dataclass(frozen=True)
class Environment:
    """What a worker's process is started with.

    Attributes:
        variables: those set, by name; they replace the parent's.
        dropped: the parent's variables that are taken away.
        notes: what of the user's own settings was changed or deserves a word.
    """

    variables: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...] = DROPPED
    notes: tuple[str, ...] = ()

    def over(self, parent: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a process whose parent has `parent`."""
        kept = {name: value for name, value in parent.items() if name not in self.dropped}
        return {**kept, **dict(self.variables)}

    def with_variables(self, **more: str) -> Environment:
        return Environment(tuple(sorted({**dict(self.variables), **more}.items())), self.dropped, self.notes)


def xla_flags(user: str, host_devices: int) -> tuple[str, tuple[str, ...]]:
    """The user's `XLA_FLAGS` with the number of virtual devices set, and what must be said about it."""
    notes = []
    if re.search(r"[\u2010-\u2015\u2212]", user):
        notes.append("XLA_FLAGS holds a typographic dash, which XLA does not read: write two ASCII hyphens")
    words = user.split()
    kept = [word for word in words if not word.startswith(HOST_DEVICES_FLAG)]
    ours = f"{HOST_DEVICES_FLAG}={host_devices}"
    if len(kept) < len(words) and ours not in words:
        notes.append(f"XLA_FLAGS: {HOST_DEVICES_FLAG} is replaced by {host_devices} in the workers")
    if kept:
        notes.append(f"XLA_FLAGS from the environment is in force: {' '.join(kept)}")
    return " ".join([*kept, ours]), tuple(notes)


def environment(host_devices: int = 1, parent: Mapping[str, str] = os.environ) -> Environment:
    """The environment of a worker whose JAX has `host_devices` virtual CPU devices.

    The user's `XLA_FLAGS` and `LIBTPU_INIT_ARGS` stay in force (a plan is judged under the flags it will run
    with).

    Raises:
        ValueError: more virtual devices than the host's XLA can have, or none.
    """
    if not 1 <= host_devices <= MAX_HOST_DEVICES:
        raise ValueError(f"virtual CPU devices: expected 1 to {MAX_HOST_DEVICES}, got {host_devices}")
    flags, notes = xla_flags(parent.get("XLA_FLAGS", ""), host_devices)
    if parent.get("LIBTPU_INIT_ARGS"):
        notes += (f"LIBTPU_INIT_ARGS from the environment is in force: {parent['LIBTPU_INIT_ARGS']}",)
    return Environment(tuple(sorted({**FORCED, "XLA_FLAGS": flags}.items())), notes=notes)


def deciding_variables(parent: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's variables that change what is traced or compiled: part of every cache key.

    The number of virtual devices is left out, since the workers set it themselves.
    """
    names = [*DECIDING, *(name for name in parent if name.startswith("JAX_"))]
    ours = {*FORCED, *DROPPED}
    found = {name: parent[name] for name in sorted(names) if name in parent and name not in ours}
    if "XLA_FLAGS" in found:
        words = found["XLA_FLAGS"].split()
        found["XLA_FLAGS"] = " ".join(word for word in words if not word.startswith(HOST_DEVICES_FLAG))
    return {name: value for name, value in found.items() if value}


def version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def required_version(distribution: str, of: str = "jax", extra: str = "") -> str | None:
    """The version clause (`==0.0.42.*`) that package `of` pins `distribution` to under an extra, or None."""
    try:
        requirements = importlib.metadata.requires(of) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        head, _, marker = requirement.partition(";")
        found = re.match(r"\s*([\w.-]+)(?:\[[\w,-]*\])?\s*(.*)", head)
        right_extra = not extra or re.search(rf"""extra\s*==\s*["']{re.escape(extra)}["']""", marker)
        if found and found[1].replace("_", "-").lower() == distribution and right_extra:
            return found[2].strip() or None
    return None


@dataclass(frozen=True)
class Availability:
    """Whether a compiler is installed here.

    Attributes:
        version: what is installed (`libtpu 0.0.42.1`), empty where nothing is.
        problem: why it does not count as available, empty where it does.
        install: the command that installs it.
    """

    platform: Platform
    version: str
    problem: str = ""
    install: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def available(platform: Platform) -> Availability:
    """Whether `platform`'s compiler is installed, read from package metadata alone (nothing is imported)."""
    jax = version("jax")
    if jax is None:
        return Availability(platform, "", "jax is not installed", "pip install jax")
    if platform == "cpu":
        return Availability(platform, f"jaxlib {version('jaxlib')}")
    return _libtpu(jax) if platform == "tpu" else _cuda_plugin(jax)


def _libtpu(jax: str) -> Availability:
    install = f'pip install "jax[tpu]=={jax}"'
    found = version("libtpu")
    if found is None:
        return Availability("tpu", "", "the TPU compiler (libtpu) is not installed", install)
    pin = (required_version("libtpu", extra="tpu") or "").removeprefix("==")
    # another libtpu than the pinned one starts, then fails on some chips when a program is printed
    problem = ""
    if pin and not fnmatch(found, pin):
        problem = f"libtpu {found} is not the one that jax {jax} pins ({pin})"
    return Availability("tpu", f"libtpu {found}", problem, install)


def _cuda_plugin(jax: str) -> Availability:
    install = f'pip install "jax[cuda13]=={jax}"'
    plugins = {name: found for name in CUDA_PLUGINS if (found := version(name))}
    if not plugins:
        return Availability("cuda", "", "the CUDA compiler (JAX's CUDA plugin) is not installed", install)
    name, found = next(iter(plugins.items()))
    pjrt = version(name.replace("plugin", "pjrt"))
    problem = ""
    if found != version("jaxlib"):
        problem = f"{name} {found} does not match jaxlib {version('jaxlib')}"
    elif pjrt != found:
        problem = f"{name.replace('plugin', 'pjrt')} is {pjrt or 'not installed'}, {name} is {found}"
    return Availability("cuda", f"{name} {found}", problem, install)


def require(platform: Platform) -> Availability:
    """The compiler, or `MissingError` with the command that installs it."""
    found = available(platform)
    if not found.ok:
        raise MissingError(found.problem[0].upper() + found.problem[1:], found.install)
    return found


def versions(platform: Platform) -> dict[str, str]:
    """Versions that decide what a compiler answers: part of the evidence and of the cache's key."""
    names = ["jax", "jaxlib", "flax", "optax"]
    names += {"cpu": (), "tpu": ("libtpu",), "cuda": CUDA_PLUGINS}[platform]
    return {name: found for name in names if (found := version(name))}
