"""Several processes as one run: how they are found, started and told apart.

Slurm, Open MPI, Kubernetes and TPU pods are recognised by the variables that they set; JAX itself reads addresses and
numbers from them. Elsewhere each process is told (`Explicit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxplan.errors import InputError

START_LIMIT_S = 120         # chosen: a peer that has not come by then is taken to be missing
HEARTBEAT_S = 30            # chosen: a peer that has not been heard of for so long is taken to be dead


@dataclass(frozen=True)
class Explicit:
    """A process that was told where the others are.

    Attributes:
        coordinator: `HOST:PORT` of process 0.
    """

    coordinator: str
    processes: int
    process: int

    def __post_init__(self) -> None:
        host, colon, port = self.coordinator.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise InputError(f"--coordinator {self.coordinator}", "HOST:PORT of process 0", "10.0.0.1:8476")
        if self.processes < 1:
            raise InputError(f"--processes {self.processes}", "at least 1")
        if not 0 <= self.process < self.processes:
            raise InputError(f"--process {self.process}", f"0 to {self.processes - 1}, as there are --processes")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explicit(coordinator: str | None, processes: int | None, process: int | None) -> Explicit | None:
    """What the three flags say together; None where none is given.

    Raises:
        InputError: only some are given, or their values make no sense.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if coordinator is None or processes is None or process is None:
        raise InputError(f"{', '.join(missing)} is missing", "all of --coordinator, --processes and --process")
    return Explicit(coordinator, processes, process)


def detected(environment: Mapping[str, str]) -> str:
    """What started this process as one of several, or an empty text.

    One process alone (a step of Slurm with one task, a pod that is no part of an indexed job) is none of several.
    """
    def count(name: str) -> int:
        value = environment.get(name, "")
        return int(value) if value.isdigit() else 1

    if count("SLURM_NTASKS") > 1 and "SLURM_PROCID" in environment and "SLURM_STEP_NODELIST" in environment:
        return "Slurm"
    if count("OMPI_COMM_WORLD_SIZE") > 1:
        return "Open MPI"
    if len(environment.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
        return "TPU pod"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return "Kubernetes"
    return ""


def join(asked: Explicit | None, found: str, start_limit_s: int = START_LIMIT_S) -> None:
    """Become one of several processes, where it was asked for or found; before JAX has looked for devices.

    CPU devices of several processes need collectives that cross them; gloo's are in every jaxlib.

    Raises:
        InputError: the others cannot be reached.
    """
    if asked is None and not found:
        return
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    limits: dict[str, Any] = {"initialization_timeout": start_limit_s, "heartbeat_timeout_seconds": HEARTBEAT_S}
    try:
        if asked is None:
            jax.distributed.initialize(**limits)
        else:
            jax.distributed.initialize(asked.coordinator, asked.processes, asked.process, **limits)
    except Exception as error:      # most failures end the process (XLA's client does)
        told = None if asked is None else asked.to_json()
        raise unreached(started_by(told, found), str(error).strip().partition("\n")[0]) from error


def started_by(asked: Mapping[str, Any] | None, found: str) -> str:
    """Who says that this is one of several processes, in words."""
    if asked is None:
        return f"{found} started this process as one of several"
    return f"this is process {asked['process']} of {asked['processes']}, with the coordinator {asked['coordinator']}"


def unreached(started: str, why: str) -> InputError:
    """The message of a process that found no others."""
    return InputError(
        f"{started}; the others were not reached: {why}",
        "all processes to run this command at the same time, and a coordinator's port that is free and reachable",
        "--coordinator HOST:PORT --processes N --process I",
    )
