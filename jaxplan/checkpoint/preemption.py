"""A machine that is taken away says so first (SIGTERM): all processes save the same step and end in time.

With several processes `jax.distributed.initialize` has a service that agrees on the step. Imports JAX when entered.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType

from jaxplan.checkpoint.watchdog import RESTART


class Preemption:
    """Whether the process is asked to end, the same answer at the same step on every process.

    Args:
        grace_s: seconds between the signal and the kill that follows it, as the platform says (TPU VMs and Kubernetes:
            30); a process that is not done a second before is ended with exit code 75: the older step stands.
    """

    def __init__(self, grace_s: float = 30.0) -> None:
        if grace_s <= 0:
            raise ValueError(f"grace_s must be positive, got {grace_s}")
        self._grace_s = grace_s
        self._alarm: threading.Timer | None = None
        self._signalled = False
        self._previous: object = None
        self._together = False

    def reached(self, step: int) -> bool:
        """Whether to save this step and end; to be asked by every process at every step."""
        if not self._together:
            return self._signalled
        from jax.experimental import multihost_utils

        found = multihost_utils.reached_preemption_sync_point(step)
        if found:
            self._start_alarm()
        return found

    def __enter__(self) -> Preemption:
        import jax

        self._together = jax.process_count() > 1        # then jax's own service has the signal
        if not self._together:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if not self._together:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        self._start_alarm()

    def _start_alarm(self) -> None:
        if self._alarm is None:
            self._alarm = threading.Timer(max(self._grace_s - 1, self._grace_s / 2), self._late)
            self._alarm.daemon = True
            self._alarm.start()

    def _late(self) -> None:
        said = f"preemption: {self._grace_s:g} s of grace are over, the save is not done; the older step stands"
        print(said, file=sys.stderr, flush=True)
        os._exit(RESTART)
