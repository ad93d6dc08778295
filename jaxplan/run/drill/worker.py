"""A child process of the drill, seen from its parent: orders in, events out, and every way to end it. No JAX."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxplan.compile.worker import end, import_paths
from jaxplan.run.drill.orders import Came, Order, Session

STDERR_BYTES = 1 << 16
ENDS = ("done", "refused", "failed", "preempted")
Event = Mapping[str, Any]


class SilentError(Exception):
    """A child said nothing for longer than it may."""


class Worker:
    """One process of the trainer. A context manager: leaving it ends the process."""

    def __init__(self, session: Session, variables: Mapping[str, str], python: str = sys.executable) -> None:
        self.session, self._buffer, self._ordered_s = session, b"", time.monotonic()
        self._stderr = tempfile.TemporaryFile(prefix="jaxplan-drill-")  # noqa: SIM115  lives as long as the process
        paths = import_paths(variables) if python == sys.executable else import_paths({})[:1]
        self._process = subprocess.Popen(
            [python, "-P", "-m", "jaxplan.run.drill.trainer", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**variables, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        self._write(session.to_json())

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, order: Order) -> None:
        self._ordered_s = time.monotonic()
        self._write(order.to_json())

    def train(self, order: Order, limit_s: float, until: Callable[[Event], bool] | None = None) -> Came:
        """Gives an order and listens until the training ended, its process did, or an event is waited for.

        Raises:
            SilentError: nothing was said for `limit_s`.
        """
        self.order(order)
        return self.listen(limit_s, until)

    def listen(self, limit_s: float, until: Callable[[Event], bool] | None = None) -> Came:
        """The same without an order.

        Raises:
            SilentError: nothing was said for `limit_s`.
        """
        events, code = [], None
        for event in self._events(limit_s):
            events.append({**event, "at_s": time.monotonic() - self._ordered_s})
            if event["event"] in ENDS or (until is not None and until(event)):
                break
        else:
            code = self._process.wait()
        steps = [event for event in events if event["event"] == "step"]
        return Came(
            tuple(events),
            code,
            self.stderr() if code is not None else "",
            time.monotonic() - self._ordered_s,
            {event["step"]: event["loss"] for event in steps},
            {event["step"]: event["digest"] for event in steps},
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends the process a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, limit_s: float) -> int | None:
        """The exit code; None where the process is still there."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        """The newest part of what it wrote there."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size - STDERR_BYTES)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def _write(self, data: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):      # it is gone: listening finds out how
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
            self._process.stdin.flush()

    def _events(self, limit_s: float) -> Iterator[Event]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                yield json.loads(line)
                continue
            if not select.select([pipe], [], [], limit_s)[0]:
                raise SilentError(f"nothing was heard of process {self.pid} for {limit_s:.0f} s")
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return
            self._buffer += chunk

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._stderr.close()
