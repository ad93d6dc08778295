"""A pool of workers in the shape of `concurrent.futures`: submit a job, get a future of its outcome. No JAX
here.

Compiles are single-threaded for the most part, so two at a time fill two cores. The pool prefers to give a
job to a worker that already has the job's environment, and replaces workers that died or grew large.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from jaxplan.compile.host import memory_bytes
from jaxplan.compile.worker import Job, Outcome, Worker

RETIRE_SHARE = 0.2      # of the host's memory: a worker that holds more between jobs is replaced


@dataclass(eq=False)
class _Task:
    job: Job
    future: Future[Outcome] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)


class WorkerPool:
    """At most `size` workers. A context manager: leaving it by an exception (Ctrl-C) kills all of them at
    once.

    Futures never hold exceptions: what went wrong is in the outcome. A future cancelled before it began is a
    cancelled future, as everywhere; `cancel` also ends one that runs, with the outcome `cancelled`.
    """

    def __init__(self, size: int = 2) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self._changed = threading.Condition()
        self._waiting: list[_Task] = []
        self._running: dict[Future[Outcome], _Task] = {}
        self._closing = False
        # daemons: an interpreter that exits does not wait for a compile; the kernel kills its workers
        self._slots = [threading.Thread(target=self._slot, daemon=True) for _ in range(size)]
        for slot in self._slots:
            slot.start()

    def submit(self, job: Job, done: Callable[[Future[Outcome]], object] | None = None) -> Future[Outcome]:
        """Queue a job. `done` is called with the future when it is finished, in a thread of the pool."""
        task = _Task(job)
        if done is not None:
            task.future.add_done_callback(done)
        with self._changed:
            if self._closing:
                raise RuntimeError("this pool is closed")
            self._waiting.append(task)
            self._changed.notify_all()
        return task.future

    def cancel(self, future: Future[Outcome]) -> None:
        """Cancel a job, also one that runs: its worker is killed."""
        if future.cancel():
            return
        with self._changed:
            if future in self._running:
                self._running[future].cancelled.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs. With `cancel_futures` kill what runs and drop what waits; else finish them."""
        with self._changed:
            self._closing = True
            if cancel_futures:
                for task in self._waiting:
                    task.future.cancel()
                for task in self._running.values():
                    task.cancelled.set()
            self._changed.notify_all()
        if wait:
            for slot in self._slots:
                slot.join()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _slot(self) -> None:
        """One slot's life: take a job, run it in the slot's worker, replace the worker where needed."""
        worker: Worker | None = None
        while (task := self._take(worker)) is not None:
            try:
                worker = self._worker_for(task.job, worker)
                outcome = worker.ask(task.job, task.cancelled)
            except Exception as error:      # no process to be had: this job's bad luck
                outcome = Outcome("crashed", message=f"no worker: {type(error).__name__}: {error}")
            limit = RETIRE_SHARE * memory_bytes()
            if worker is not None and (not worker.alive or worker.resident_bytes > limit):
                worker.close()
                worker = None
            self._finish(task, outcome)
        if worker is not None:
            worker.close()

    @staticmethod
    def _worker_for(job: Job, worker: Worker | None) -> Worker:
        if worker is not None and worker.alive and worker.environment == job.environment:
            return worker
        if worker is not None:
            worker.close()
        return Worker(job.environment)

    def _take(self, worker: Worker | None) -> _Task | None:
        """The next task, those for this worker's environment first; None when the pool closes."""
        with self._changed:
            while True:
                self._waiting = [t for t in self._waiting if not t.future.cancelled()]
                mine = [t for t in self._waiting if worker and t.job.environment == worker.environment]
                for task in mine or self._waiting:
                    self._waiting.remove(task)
                    if task.future.set_running_or_notify_cancel():
                        self._running[task.future] = task
                        return task
                    break
                else:
                    if self._closing:
                        return None
                    self._changed.wait()

    def _finish(self, task: _Task, outcome: Outcome) -> None:
        with self._changed:
            del self._running[task.future]
        with contextlib.suppress(InvalidStateError):    # a caller who set it has what they set
            task.future.set_result(outcome)
