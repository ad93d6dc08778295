"""The tiers as jobs: trace a workload, partition a plan, compile it; cached, two at a time. No JAX here.

What is in the cache is answered at once, without any worker: a warm search never imports jax.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any

from jaxplan.compile.cache import Cache, digest, source_hash
from jaxplan.compile.diagnostics import crash
from jaxplan.compile.environment import (
    MAX_HOST_DEVICES,
    Environment,
    Platform,
    available,
    deciding_variables,
    environment,
    versions,
)
from jaxplan.compile.evidence import Evidence, Tier
from jaxplan.compile.pool import WorkerPool
from jaxplan.compile.target import host_view
from jaxplan.compile.worker import Job, Outcome
from jaxplan.errors import InputError, JaxplanError
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import Plan
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

TRACE_LIMIT_S = 180.0
PARTITION_LIMIT_S = 300.0
COMPILE_LIMIT_S = 900.0

TRACED_BY = ("workload", "plan")                            # the sources that decide a table,
PROVED_BY = ("workload", "plan", "machine", "compile")      # and those that decide evidence
KEPT = ("ok", "does not fit", "not available")              # a crash or a time-out may not happen again


class Tiers:
    """The compilers that can judge plans for one machine. A context manager; Ctrl-C in it kills the workers.

    Attributes:
        notes: what is missing or done differently here, for people.
    """

    def __init__(self, machine: Machine, jobs: int = 2, cache: Cache | None = None) -> None:
        self.machine, self.jobs = machine, jobs
        self.cache = Cache() if cache is None else cache
        self._pool: WorkerPool | None = None
        self._asked: dict[str, Future[Evidence]] = {}
        self._lock = threading.Lock()

    @cached_property
    def environment(self) -> Environment:
        """One for all jobs, so that every worker can do any of them."""
        return environment(min(self.machine.devices, MAX_HOST_DEVICES))

    @cached_property
    def target(self) -> Platform | None:
        """The machine's own compiler; None where there is none (AMD chips)."""
        return {"tpu": "tpu", "cuda": "cuda", "cpu": "cpu"}.get(self.machine.platform)  # type: ignore[return-value]

    @property
    def notes(self) -> tuple[str, ...]:
        notes = [*self.environment.notes, *self.cache.warnings]
        if self.target is None:
            notes.append(f"no compiler for {self.machine.chip.name} runs ahead of time: partitioned at most")
        elif not (found := available(self.target)).ok:
            notes.append(f"{found.problem}: plans are partitioned at most. Install it with: {found.install}")
        return tuple(notes)

    def trace(self, workload: Workload) -> Table:
        """The workload's table, from the cache or from a worker.

        Raises:
            InputError: the workload cannot be run or traced.
            JaxplanError: the worker failed otherwise.
        """
        parts = {"workload": workload.to_json(), **_deciding("cpu", TRACED_BY)}
        known = self.cache.get("trace", parts)
        if known is not None:
            return Table.from_json(known)
        job = Job(
            "jaxplan.compile.lower:trace_job",
            {"workload": workload.to_json()},
            self.environment,
            TRACE_LIMIT_S,
            label=f"trace {workload.name}",
        )
        outcome = self._workers.submit(job).result()
        if outcome.exit_code is not None:   # its process died; without a table there is no search: another try
            outcome = self._workers.submit(job).result()
        if not outcome.ok:
            raise _trace_error(workload, outcome)
        self.cache.put("trace", parts, outcome.value)
        return Table.from_json(outcome.value)

    def partition(self, plan: Plan) -> Future[Evidence] | None:
        """What the host's partitioner makes of a plan; None where no compiler here can partition it.

        Beyond the devices that the host takes, a GPU plan is compiled instead: stronger, and as cheap.
        """
        view = host_view(plan, available("cuda").ok)
        if view is None:
            return None
        if view.platform == self.target:
            return self.compile(plan)
        timed = view.shrunk == 1
        return self._prove(view.plan, "partitioned", view.platform, note=view.note, timed=timed)

    def compile(self, plan: Plan, *, init: bool = False, buffers: bool = True) -> Future[Evidence] | None:
        """What the target's own compiler makes of a plan; None where it is not installed here.

        Args:
            init: also compile the program that makes the initial state.
            buffers: also name the largest buffers at the peak.
        """
        if self.target is None or not available(self.target).ok:
            return None
        # what computes in another dtype than the plan is priced in proves memory and collectives, but no time
        timed = not plan.workload.matmul_dtype
        return self._prove(plan, "compiled", self.target, init=init, buffers=buffers, timed=timed)

    def _prove(
        self,
        plan: Plan,
        tier: Tier,
        platform: Platform,
        *,
        init: bool = False,
        buffers: bool = False,
        note: str = "",
        timed: bool = True,
    ) -> Future[Evidence]:
        asked = {"tier": tier, "platform": platform, "init": init, "buffers": buffers}
        asked["decisions"] = plan.decisions()
        parts = {**asked, "note": note, **_deciding(platform, PROVED_BY)}
        key = digest(parts)
        with self._lock:
            if key in self._asked:
                return self._asked[key]
            answer = self._asked[key] = Future()
        folder = self.cache.folder(tier, key) if tier == "compiled" else None
        known = self.cache.get(tier, parts)
        if known is not None:
            answer.set_result(replace(Evidence.from_json(known, from_cache=True), folder=folder))
            return answer
        limit = PARTITION_LIMIT_S if tier == "partitioned" else COMPILE_LIMIT_S
        told = {**asked, "folder": str(folder or "")}
        job = Job("jaxplan.compile.lower:prove_job", told, self.environment, limit, label=plan.label)

        def finished(future: Future[Outcome]) -> None:
            evidence = _evidence(plan, tier, platform, future, (note,) if note else ())
            evidence = evidence if timed else evidence.untimed()
            if platform == "cpu" and evidence.status == "failed" and plan.workload.model is None:
                evidence = _of_another_platform(evidence)
            if evidence.status in KEPT:
                self.cache.put(tier, parts, evidence.to_json())
            if evidence.status not in KEPT:
                self._asked.pop(key, None)      # whoever asks again gets another try
            answer.set_result(replace(evidence, folder=folder))

        self._workers.submit(job, done=finished)
        return answer

    @property
    def _workers(self) -> WorkerPool:
        with self._lock:
            if self._pool is None:
                self._pool = WorkerPool(self.jobs)
            return self._pool

    def close(self, kill: bool = True) -> None:
        """End the workers: at once, or when what was submitted is done."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kill)

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _deciding(platform: Platform, sources: tuple[str, ...]) -> dict[str, Any]:
    """What decides an answer beside the question: part of every key."""
    return {
        "versions": versions(platform),
        "variables": deciding_variables(),
        "sources": source_hash(*sources),
    }


def _evidence(
    plan: Plan, tier: Tier, platform: Platform, future: Future[Outcome], notes: tuple[str, ...]
) -> Evidence:
    """The evidence that a job's outcome amounts to, whatever became of the job."""
    if not future.cancelled() and future.result().ok:
        data: Mapping[str, Any] = future.result().value
        return Evidence.from_json({**data, "notes": [*data["notes"], *notes]})
    outcome = Outcome("cancelled", message="cancelled") if future.cancelled() else future.result()
    return Evidence(
        tier,
        outcome.status,
        platform,
        _why(outcome),
        seconds=outcome.seconds,
        capacity_bytes=plan.machine.device_hbm_bytes,
        versions=versions(platform),
        notes=notes,
    )


def _of_another_platform(evidence: Evidence) -> Evidence:
    """A user's program may hold kernels of its target, which the host cannot compile: that says nothing of the plan."""
    message = f"the host cannot compile this program ({evidence.message})"
    return replace(evidence, status="not available", message=message)


def _why(outcome: Outcome) -> str:
    if outcome.exit_code is not None:
        return crash(outcome.exit_code, outcome.stderr).message
    return _first_line(outcome.message)


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:500]


def _trace_error(workload: Workload, outcome: Outcome) -> JaxplanError:
    if outcome.error == "jaxplan.errors.InputError":
        return InputError(outcome.message.removeprefix("InputError: ").rstrip("."))
    return JaxplanError(f"tracing {workload.name}: {outcome.status}: {_first_line(outcome.message)}")


def partition(plan: Plan) -> Evidence | None:
    """`Tiers.partition` of one plan, waited for."""
    with Tiers(plan.machine, 1) as tiers:
        future = tiers.partition(plan)
        return None if future is None else future.result()


def compile(plan: Plan, *, init: bool = True) -> Evidence | None:
    """`Tiers.compile` of one plan, waited for."""
    with Tiers(plan.machine, 1) as tiers:
        future = tiers.compile(plan, init=init)
        return None if future is None else future.result()
