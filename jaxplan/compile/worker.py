"""Worker processes: whatever a compiler does to one of them, the caller gets an outcome that says so. No JAX
here.

A worker is a process with its own environment, its standard error in a file, watched for time and memory,
killed with everything it started. It answers one job after another, since importing jax and flax costs more
than a second; after a crash the next job gets a new one. `jaxplan.compile.pool` keeps several; `run(job)` is
the same for a single job, a plain function of plain data, which any `concurrent.futures.Executor` (or a Ray
task) can be given instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jaxplan.compile.environment import Environment, environment
from jaxplan.compile.host import memory_bytes, resident_bytes
from jaxplan.compile.job import STDERR_READ_BYTES
from jaxplan.units import format_bytes

Status = Literal["ok", "failed", "crashed", "timed out", "killed", "cancelled"]

START_LIMIT_S = 60.0        # a Python that has not said hello by then never will
WATCH_PERIOD_S = 0.05       # memory and cancellation are looked at so often
LAST_WORDS_S = 0.3          # what a hung worker gets to write where it hangs
MEMORY_SHARE = 0.45         # of the host's memory for one of two workers


@dataclass(frozen=True)
class Job:
    """One call to make in a worker.

    Attributes:
        function: `package.module:name`, importable in the worker.
        arguments: its keyword arguments, plain data that survives JSON.
        environment: what the worker's process is started with.
        seconds_limit: wall-clock time after which it is killed.
        memory_limit_bytes: resident memory above which it is killed; None: a share of the host's.
        label: what it is, for people.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Environment = field(default_factory=environment)
    seconds_limit: float = 600.0
    memory_limit_bytes: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if ":" not in self.function:
            raise ValueError(f"function must read package.module:name, got {self.function!r}")
        if self.seconds_limit <= 0:
            raise ValueError(f"seconds_limit must be positive, got {self.seconds_limit}")


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        status: `ok` (there is a value), `failed` (it raised), `crashed` (its process died), `timed out`,
            `killed` (for its memory, or by someone else), `cancelled`.
        message: one or two sentences for people, empty when ok.
        error: the class of the exception that it raised.
        stderr: what the process wrote to descriptor 2 meanwhile (the newest part).
        exit_code: of a process that ended by itself, minus the signal's number where one ended it.
    """

    status: Status
    value: Any = None
    message: str = ""
    error: str = ""
    traceback: str = ""
    stderr: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    exit_code: int | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def describe_exit(code: int, who: str = "the worker") -> tuple[Status, str]:
    """The status and the words for a process that ended by itself with this return code."""
    if code >= 0:
        return "crashed", f"{who} exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return "crashed", f"{who} was killed by signal {-code}"
    if -code == signal.SIGKILL:
        return "killed", f"{who} was killed from outside (SIGKILL: usually the system was out of memory)"
    return "crashed", f"{who} crashed with {name} ({signal.strsignal(-code)})"


class Worker:
    """One process that answers jobs.

    To be used from the thread that made it only: the kernel ends the process with that thread.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._stderr = tempfile.TemporaryFile(prefix="jaxplan-worker-")  # noqa: SIM115  lives as long as the process
        self._buffer = b""
        self._jobs = 0
        variables = environment.over(os.environ)
        variables["PYTHONPATH"] = os.pathsep.join(import_paths(variables))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jaxplan.compile.job", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=variables,
            start_new_session=True,     # killed as a group; and a terminal's Ctrl-C does not reach it
        )
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def ask(self, job: Job, cancelled: threading.Event | None = None) -> Outcome:
        """Run one job to its outcome. After any outcome but `ok` and `failed` the worker is dead."""
        start = time.monotonic()
        stderr_start = os.fstat(self._stderr.fileno()).st_size
        request = {"id": self._jobs, "function": job.function, "arguments": dict(job.arguments)}
        self._jobs += 1
        outcome, peak = self._converse(request, job, cancelled or threading.Event())
        if outcome.status not in ("ok", "failed"):
            self.kill()
        stderr = self._read_stderr(stderr_start)
        return replace(outcome, stderr=stderr, seconds=time.monotonic() - start, peak_bytes=peak)

    def _converse(self, request: dict, job: Job, cancelled: threading.Event) -> tuple[Outcome, int]:
        limit_bytes = job.memory_limit_bytes or int(MEMORY_SHARE * memory_bytes())
        if not self._ready:
            reply, peak = self._receive(START_LIMIT_S, limit_bytes, cancelled)
            if isinstance(reply, Outcome):
                return replace(reply, message=f"while the worker was starting: {reply.message}"), peak
            self._ready = True
        with contextlib.suppress(BrokenPipeError):      # it is dead: receiving finds out how it died
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        reply, peak = self._receive(job.seconds_limit, limit_bytes, cancelled)
        if isinstance(reply, Outcome):
            return reply, peak
        if reply["status"] == "ok":
            return Outcome("ok", reply["value"]), peak
        message = f"{reply['kind'].rpartition('.')[2]}: {reply['error']}".removesuffix(": ")
        return Outcome("failed", None, message, reply["kind"], reply["traceback"]), peak

    def _receive(
        self, seconds: float, limit_bytes: int, cancelled: threading.Event
    ) -> tuple[dict | Outcome, int]:
        """The next reply, or the outcome that stands for its absence; and the peak of resident memory."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline, peak = time.monotonic() + seconds, 0
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([pipe], [], [], WATCH_PERIOD_S)
            if readable:
                chunk = os.read(pipe, 1 << 20)
                if not chunk:
                    code = self._wait()
                    status, message = describe_exit(code)
                    return Outcome(status, message=message, exit_code=code), peak
                self._buffer += chunk
                continue
            peak = max(peak, self.resident_bytes)
            if cancelled.is_set():
                return Outcome("cancelled", message="cancelled"), peak
            if peak > limit_bytes:
                used, limit = format_bytes(peak), format_bytes(limit_bytes)
                said = f"the worker used {used} of memory, its limit was {limit}"
                return Outcome("killed", message=said), peak
            if time.monotonic() > deadline:
                self._last_words()
                return Outcome("timed out", message=f"no answer after {seconds:.0f} s"), peak
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line), max(peak, self.resident_bytes)

    def _wait(self) -> int:
        """The return code of a process whose output has ended."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:       # it closed its output and lives: no use to anyone
            self.kill()
            return self._process.wait()

    def _last_words(self) -> None:
        """Let a hung worker write to its standard error where it hangs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(LAST_WORDS_S)

    def _read_stderr(self, start: int) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(start, size - STDERR_READ_BYTES)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def kill(self) -> None:
        """End the process and everything it started, now."""
        end(self._process)

    def close(self) -> None:
        """Kill the process and let go of its files."""
        self.kill()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end(process: subprocess.Popen) -> None:
    """End a process that leads a session, and everything it started, now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert stream is not None
            stream.close()


def import_paths(variables: Mapping[str, str]) -> list[str]:
    """Where a process of ours looks for modules: where this process does, so that both see the same packages."""
    package_parent = str(Path(__file__).resolve().parents[2])
    asked = variables.get("PYTHONPATH", "").split(os.pathsep)
    paths = [*asked, package_parent, *(path or os.getcwd() for path in sys.path)]
    return list(dict.fromkeys(path for path in paths if path))


def run(job: Job) -> Outcome:
    """Run one job in a worker of its own."""
    with Worker(job.environment) as worker:
        return worker.ask(job)
