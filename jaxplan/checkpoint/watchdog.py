"""A training step that hangs ends the process, with every thread's stack said, so that a supervisor can start again.

A collective whose peer is gone or hangs waits for ever, and Python is not told. No JAX here.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

#: Exit code that asks to be started again: EX_TEMPFAIL of sysexits.h, "try again later".
RESTART = 75
CHECKS = 10         # looks in one limit


class Watchdog:
    """Called after every step; without a call for `limit_s` it dumps all stacks and ends the process.

    Args:
        limit_s: the longest time between two calls, in seconds: several steps and a save.
        first_s: the same before the first call, where the step is compiled; default ten times `limit_s`.
        exit_code: of the process that is ended.
        file: where the stacks go; default standard error.

    Where code that holds the interpreter's lock hangs, no Python thread runs: then the interpreter's own alarm
    (`faulthandler`) dumps the stacks and ends the process with code 1, at most `limit_s` later.
    """

    def __init__(
        self, limit_s: float, first_s: float | None = None, exit_code: int = RESTART, file: TextIO | None = None
    ) -> None:
        if limit_s <= 0 or (first_s is not None and first_s <= 0):
            raise ValueError(f"limits must be positive, got {limit_s} and {first_s}")
        self._limit_s, self._exit_code = limit_s, exit_code
        self._file = sys.stderr if file is None else file
        self._allowed_s = 10 * limit_s if first_s is None else first_s
        self._last_s, self._step = time.monotonic(), None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jaxplan-watchdog", daemon=True)

    def __call__(self, step: int) -> None:
        """The step is done."""
        self._last_s, self._step, self._allowed_s = time.monotonic(), step, self._limit_s

    def __enter__(self) -> Watchdog:
        self._last_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._closed.wait(self._limit_s / CHECKS):
            faulthandler.dump_traceback_later(max(2 * self._limit_s, self._allowed_s), exit=True, file=self._file)
            silent_s = time.monotonic() - self._last_s
            if silent_s > self._allowed_s:
                self._end(silent_s)

    def _end(self, silent_s: float) -> None:
        done = "no step is done" if self._step is None else f"the last finished step is {self._step}"
        said = f"watchdog: no progress for {silent_s:.1f} s, {done}; exit {self._exit_code} to be started again"
        try:
            print(said, file=self._file, flush=True)
            faulthandler.dump_traceback(file=self._file, all_threads=True)
        finally:
            os._exit(self._exit_code)
