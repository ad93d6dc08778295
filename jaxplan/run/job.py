"""One run, from a request to events: what a run's process does. Imports JAX when called.

Events are plain data, told as they happen, so that whoever listens has what was measured so far whatever comes next.
Each has a key `event`:

    attached    platform, device_kind, devices, process, processes
    plan        decisions (as they run), scaled, words
    facts       needed_flops, compute_dtype, tokens, peak_flops_per_s (of one device; null where it is not known)
    compiled    seconds, init_s, wrong (shardings that are not the plan's)
    step        phase (warmup, plain, profiled), number, seconds, dispatch_s, loss, gradient_norm
    profile     session, path, problem
    memory      peak_per_device, why_not
    parity      as in run.json
    note        text
    failed      kind (the class of jaxplan.errors, empty for others), message, traceback
    done
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.compile.environment import Platform
from jaxplan.compile.hlo import HloError
from jaxplan.errors import JaxplanError
from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.placement import place
from jaxplan.plan import files
from jaxplan.plan.decisions import plan_from
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import PlanRecord, installed_versions, leaf_specs
from jaxplan.run.attached import Attached
from jaxplan.run.processes import Explicit, join
from jaxplan.run.scale import Fits, Scaled, parity_plan, scaled
from jaxplan.run.tokens import open_tokens
from jaxplan.workload.table import Table

if TYPE_CHECKING:
    from jax.sharding import Mesh

PROFILED_STEPS = 5      # chosen: enough for a median, few enough to keep a trace small
PATH_BYTES = 4096       # of a folder's name that process 0 tells the others
PLATFORMS: dict[str, Platform] = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}    # of compilers, by a chip's kind
Say = Callable[[dict[str, Any]], None]
GiveFolder = Callable[[], str]


@dataclass(frozen=True)
class Request:
    """What is to be run.

    Attributes:
        plan: path of the plan. decisions: the plan's, as its program is now.
        data: path of a file of token ids; empty: made-up ones.
        calibration: `machine.attached.AttachedCalibration` of the attached devices as data; None: nothing is predicted
            but what the plan's file says.
        explicit: `processes.Explicit` as data; None where nobody said. detected: who started several processes.
    """

    plan: str
    decisions: Mapping[str, Any]
    steps: int
    warmup: int
    data: str = ""
    parity: bool = True
    calibration: Mapping[str, Any] | None = None
    explicit: Mapping[str, Any] | None = None
    detected: str = ""


def execute(request: Request, say: Say, give_folder: GiveFolder) -> None:
    """Runs a plan and tells what happens; a failure is an event, too.

    Args:
        give_folder: the path of the run's folder, asked for once the devices are known; process 0's counts.
    """
    try:
        _Run(request, say, give_folder).go()
    except JaxplanError as error:
        say({"event": "failed", "kind": type(error).__name__, "message": str(error), "traceback": ""})
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        message = f"{type(error).__name__}: {first}"
        say({"event": "failed", "kind": "", "message": message, "traceback": traceback.format_exc()})


class _Run:
    def __init__(self, request: Request, say: Say, give_folder: GiveFolder) -> None:
        self.request, self._tell, self._give_folder = request, say, give_folder

    def go(self) -> None:
        asked = self.request
        join(None if asked.explicit is None else Explicit(**asked.explicit), asked.detected)
        from jaxplan.run.batches import batches
        from jaxplan.run.train import AWAITED, Training, attached, mesh_of

        self.here = attached()
        self.say("attached", **vars(self.here))
        self.folder = self._folder()
        record = replace(files.read(asked.plan), plan=plan_from(asked.decisions))
        data = open_tokens(Path(asked.data)) if asked.data else None
        known = None if asked.calibration is None else AttachedCalibration.from_json(asked.calibration)
        fits = self._fits(record.plan)
        found = scaled(record.plan, self.here, fits, keep_vocab=data is not None, calibration=known)
        plan = found.plan
        self.say("plan", decisions=plan.decisions(), scaled=found.to_json(), words=list(found.words))
        table = traced(plan)
        self._facts(plan, table)
        batch_of, said = batches(plan, asked.warmup + asked.steps + self._profiled, data)
        self._note(said)
        self._write_plan(record, found, table)
        mesh = mesh_of(plan, self.here, record.plan)
        training = Training(plan, mesh, batch_of)
        self._compiled(training)
        if known is not None:
            self._write_plan(record, found, table, self._predicted(plan, table, training.text))
        self._note(AWAITED)
        self._train(training)
        self._memory()
        if asked.parity:
            del training        # its memory is free for the steps that are compared
            self._parity(plan, mesh, table)
        self.say("done")

    @property
    def _profiled(self) -> int:
        return min(PROFILED_STEPS, self.request.steps)

    def _fits(self, asked: Plan) -> Fits | None:
        """Whether a plan's estimated memory is what a device has; None where nobody knows what it has."""
        if self.here.virtual:
            return None
        import jax

        from jaxplan.estimate.single import estimate_plan

        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
        if limit is None:
            return None
        return lambda plan: estimate_plan(plan, traced(plan)).total_bytes <= limit

    def _folder(self) -> Path:
        """The run's folder, which process 0 tells the others."""
        name = self._give_folder()
        if self.here.processes > 1:
            from jax.experimental import multihost_utils

            mine = np.zeros(PATH_BYTES, np.uint8)
            mine[: len(name.encode())] = np.frombuffer(name.encode(), np.uint8)
            name = bytes(np.asarray(multihost_utils.broadcast_one_to_all(mine))).rstrip(b"\0").decode()
        return Path(name)

    def _facts(self, plan: Plan, table: Table) -> None:
        chip = self.here.chip(plan.machine.chip)
        rate = None
        if chip is not None and table.compute_dtype in chip.matmul_flops_per_s:
            # of a JAX device, of which some chips have two
            rate = chip.matmul_flops_per_s[table.compute_dtype] / chip.devices_per_chip
        self.say(
            "facts",
            needed_flops=table.needed_flops(plan.workload.room_factor),
            compute_dtype=table.compute_dtype,
            tokens=plan.workload.tokens,
            peak_flops_per_s=rate,
        )

    def _write_plan(
        self, record: PlanRecord, found: Scaled, table: Table, evidence: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """A copy of the plan as it runs: with all that is known of it where it is the asked one, else with what its
        machine's calibration predicts."""
        if self.here.process:
            return
        plan = found.plan
        if plan != record.plan:
            parameters, moments, batch = leaf_specs(table, plan.rules, tuple(plan.sizes))
            words = ("it runs in place of another plan", *found.words)
            about = {"versions": installed_versions(), "assumptions": words, "evidence": evidence or {}}
            record = PlanRecord(plan, parameters, moments, batch, **about)
        files.write(record, self.folder / "plan.json")

    def _predicted(self, plan: Plan, table: Table, text: str) -> Mapping[str, Mapping[str, Any]]:
        try:
            return predicted(plan, table, text)
        except (HloError, JaxplanError) as error:
            self._note(f"nothing is predicted: {error}")
            return {}

    def _compiled(self, training: Any) -> None:
        from jaxplan.compile.lower import wrong_shardings

        wrong = wrong_shardings(training.output_shardings, training.step.abstract_state)
        self.say("compiled", seconds=training.compile_s, init_s=training.init_s, wrong=list(wrong))
        if self.here.process == 0:
            try:
                files.write_whole(self.folder / "program.hlo.txt", training.text)
            except OSError as error:
                self._note(f"program.hlo.txt cannot be written: {error.strerror}")

    def _train(self, training: Any) -> None:
        """Warm-up; half of the steps; some with the profiler on; the other half: what drifts meanwhile evens out."""
        from jaxplan.run.profiler import SESSION, profiled

        warmup, steps = self.request.warmup, self.request.steps
        half = warmup + (steps + 1) // 2
        if not self._take(training, "warmup", range(warmup)) or not self._take(training, "plain", range(warmup, half)):
            return
        later = range(half, half + self._profiled)
        with profiled(self.folder, self.here.process) as profile:
            taken = training.steps(later, annotate=True)
        if self.here.processes > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("profiles are written")     # process 0 is about to read them
        self._steps("profiled", taken)
        path = None if profile.path is None else str(profile.path)
        self.say("profile", session=SESSION if path else None, path=path, problem=profile.problem)
        if all(step.finite for step in taken):
            self._take(training, "plain", range(later.stop, later.stop + warmup + steps - half))

    def _take(self, training: Any, phase: str, numbers: range) -> bool:
        """Takes steps and tells each; stops at the first that is not finite."""
        for number in numbers:
            (step,) = training.steps([number])
            self._steps(phase, [step])
            if not step.finite:
                return False
        return True

    def _steps(self, phase: str, taken: list[Any]) -> None:
        for step in taken:
            self.say("step", phase=phase, **vars(step))

    def _memory(self) -> None:
        from jaxplan.run.train import device_peaks

        peaks, why_not = device_peaks(self.here)
        self.say("memory", peak_per_device=peaks, why_not=why_not)

    def _parity(self, plan: Plan, mesh: Mesh, table: Table) -> None:
        from jaxplan.run.parity import parity

        small = parity_plan(plan)
        dtype = table.compute_dtype if plan.workload.model is None else small.workload.compute_dtype
        self.say("parity", **parity(small, mesh, dtype).to_json())

    def _note(self, text: str) -> None:
        if text:
            self.say("note", text=text)

    def say(self, event: str, **about: Any) -> None:
        self._tell({"event": event, **about})


def predicted(plan: Plan, table: Table, text: str) -> dict[str, Mapping[str, Any]]:
    """What is predicted of a step on a calibrated machine: estimated from its table, read off its compiled text."""
    from jaxplan.compile import reading
    from jaxplan.compile.evidence import Evidence
    from jaxplan.estimate.single import estimate_plan

    about = Evidence("compiled", "ok", PLATFORMS[plan.machine.kind])
    read, _ = reading.read(about, text, plan, place(plan.machine, plan.sizes))
    return {"estimated": estimate_plan(plan, table).evidence(), "compiled": read.to_json()}


def traced(plan: Plan) -> Table:
    """The table of a plan's workload."""
    from jaxplan.compile.lower import trace_job

    return Table.from_json(trace_job(plan.workload.to_json()))


def attached_from(event: Mapping[str, Any]) -> Attached:
    """The devices that an event of that name tells of."""
    return Attached(**{name: value for name, value in event.items() if name != "event"})
