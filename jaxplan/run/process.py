"""A run in a process of its own: whatever becomes of it, the caller has what it told until then. No JAX here.

JAX reads its environment once, so that virtual devices need a process whose environment is set before; and what kills
a run (the system's memory, a peer's death, a driver) must not take its results along.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxplan.compile.environment import DROPPED, HOST_DEVICES_FLAG, environment, xla_flags
from jaxplan.compile.job import STDERR_READ_BYTES
from jaxplan.compile.worker import describe_exit, end, import_paths
from jaxplan.errors import InputError
from jaxplan.run.job import Request

VIRTUAL_DEVICES = 8         # chosen: three roles have two each, and a host of few cores can run them
POLL_S = 0.5
HUNG_LEAST_S, HUNG_TIMES = 120.0, 100.0     # chosen: a step that takes longer than both has hung
WAIT_S = 10.0                               # for a process that has told its last event


@dataclass(frozen=True)
class Ending:
    """How a run's process ended.

    Attributes:
        problem: why it ended before it was done, in a sentence; empty otherwise.
        stderr: the newest part of what it wrote there.
    """

    problem: str = ""
    stderr: str = ""


def variables(devices: int | None, parent: Mapping[str, str], alone: bool = False) -> dict[str, str]:
    """The environment of a run.

    Args:
        devices: virtual CPU devices in place of accelerators; None: whatever JAX finds.
        alone: no other process takes part: where JAX finds no accelerator, there are `VIRTUAL_DEVICES`.

    Raises:
        InputError: more virtual devices than the host's XLA can have, or none.
    """
    found = dict(parent)
    if devices is not None:
        try:
            environment(devices, parent)
        except ValueError as error:
            raise InputError(f"--devices {devices}: {error}") from error
        found = {name: value for name, value in found.items() if name not in DROPPED}
        found |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(parent.get("XLA_FLAGS", ""), devices)[0]}
    elif alone and HOST_DEVICES_FLAG not in parent.get("XLA_FLAGS", ""):
        found["XLA_FLAGS"] = xla_flags(parent.get("XLA_FLAGS", ""), VIRTUAL_DEVICES)[0]    # accelerators do not see it
    found["PYTHONPATH"] = os.pathsep.join(import_paths(found))
    found["PYTHONUNBUFFERED"] = "1"
    return found


class RunProcess:
    """A run on its way. A context manager: leaving it ends the process.

    Attributes:
        ending: how it ended; set when `events` is exhausted.
    """

    def __init__(self, request: Request, devices: int | None = None) -> None:
        self.ending, self._buffer = Ending(), b""
        self._stderr = tempfile.TemporaryFile(prefix="jaxplan-run-")  # noqa: SIM115  lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jaxplan.run.child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=variables(devices, os.environ, alone=request.explicit is None and not request.detected),
            start_new_session=True,     # ended as a group; and a terminal's Ctrl-C does not reach it
        )
        self._send(asdict(request))

    def give_folder(self, path: str) -> None:
        """Answers the event `attached`: where the run writes; empty where another process says it."""
        self._send(path)

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):      # it is dead: its events end
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """What the run tells, until it is done, ends otherwise or has hung."""
        slowest, stepping, last = 0.0, False, ""
        while last not in ("done", "failed"):
            line = self._line(max(HUNG_LEAST_S, HUNG_TIMES * slowest) if stepping else math.inf)
            if line is None:
                break
            event = json.loads(line)
            last = event["event"]
            if last == "step":
                # the first steps say how long one takes; what comes after the last is another program
                stepping, slowest = True, max(slowest, event["seconds"])
            elif last == "memory":
                stepping = False
            yield event
        problem = self.ending.problem
        if last not in ("done", "failed") and not problem:
            problem = describe_exit(self._process.wait(), "the run's process")[1]
        elif last == "done":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_S)      # for peers to be done, too
        self.ending = Ending(problem, self._written())

    def _line(self, limit_s: float) -> bytes | None:
        """The next line; None where there is none, or none within the limit."""
        assert self._process.stdout is not None
        pipe, since = self._process.stdout.fileno(), time.monotonic()
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], POLL_S)[0]:
                if time.monotonic() - since > limit_s:
                    words = f"nothing was heard of the run for {limit_s:.0f} s: a step hangs, here or in a peer"
                    self.ending = Ending(words)
                    return None
                continue
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _written(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size - STDERR_READ_BYTES)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._stderr.close()
