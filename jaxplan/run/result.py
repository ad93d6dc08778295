"""What a run has told so far, as figures: the document `run.json` (schema jaxplan.run/1). No JAX here.

Everything works with whatever there is: a run that was interrupted has steps and no profile, one whose step does not
fit has neither.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxplan.plan.decisions import plan_from
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import PlanRecord
from jaxplan.run.job import attached_from
from jaxplan.run.statistics import StepTimes, overhead

SCHEMA = "jaxplan.run/1"
CONVENTION = (
    "model FLOPs over what the devices could do at their {peak} dense peak in {dtype} in the median step: three times "
    "the forward matmuls and attention, nothing recomputed (arXiv:2204.02311, appendix B)"
)
FAR_BEHIND = 0.05       # of a step; chosen: a device that is further behind the others is worth a line
MOST_OVERHEAD = 0.03    # the share that profiling may add to a step before that is said

Event = Mapping[str, Any]


@dataclass
class RunResult:
    """A run's events, taken in one by one.

    Attributes:
        path: of the plan that was asked for. record: what is known of it.
        folder: where the run writes; None before it has a folder.
        interrupted: why the run ended before it was done, in a sentence.
        ledger, stragglers: of the profiled steps, measured; (name, seconds) and (device, seconds behind).
        findings: what a reader of the profile makes of it.
        compared: (name, estimated, compiled, measured seconds); None where nobody knows.
        calibration: whose rates estimates were made with.
    """

    path: Path
    record: PlanRecord
    steps_asked: int
    warmup_asked: int
    events: dict[str, Event] = field(default_factory=dict)
    taken: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    interrupted: str = ""
    ledger: Sequence[tuple[str, float]] = ()
    stragglers: Sequence[tuple[int, float]] = ()
    findings: Sequence[Mapping[str, Any]] = ()
    compared: Sequence[tuple[str, float | None, float | None, float | None]] = ()
    calibration: str | None = None

    def take(self, event: Event) -> None:
        """Takes in one event (`run.job`)."""
        kind = event["event"]
        if kind == "step":
            self.taken.append(event)
        elif kind == "note":
            self.notes.append(event["text"])
        else:
            self.events[kind] = event

    @property
    def plan(self) -> Plan:
        """The plan as it ran; the asked one before that is known."""
        decided = self.events.get("plan")
        return self.record.plan if decided is None else plan_from(decided["decisions"])

    @property
    def silent(self) -> bool:
        """Whether another process speaks for this run."""
        return bool(self.events.get("attached", {}).get("process"))

    def seconds(self, phase: str) -> list[float]:
        """Of the steps of a phase, in order."""
        return [step["seconds"] for step in self.taken if step["phase"] == phase]

    @property
    def times(self) -> StepTimes | None:
        """Of the steps without profiler; None before there is one."""
        plain = self.seconds("plain")
        return StepTimes(tuple(plain)) if plain else None

    @property
    def bad_step(self) -> Event | None:
        """The first step whose loss or gradients are not finite."""
        return next((s for s in self.taken if s["loss"] is None or s["gradient_norm"] is None), None)

    @property
    def overhead(self) -> float | None:
        return overhead(self.seconds("plain"), self.seconds("profiled"))

    @property
    def profile_path(self) -> Path | None:
        path = self.events.get("profile", {}).get("path")
        return Path(path) if path else None

    @property
    def against(self) -> list[str]:
        """What speaks against the plan, a sentence each: then the exit code is 1."""
        found = []
        if (bad := self.bad_step) is not None:
            what = "loss" if bad["loss"] is None else "gradient norm"
            found.append(f"step {bad['number']} ({bad['phase']}): the {what} is not finite")
        parity = self.events.get("parity", {})
        if parity.get("checked") and not parity["passed"]:
            loss, norm = (_share(parity[name]) for name in ("loss_difference", "gradient_norm_difference"))
            allowed = parity["tolerance"]
            found.append(
                f"parity failed: against one device the loss is {loss} off (allowed {allowed['loss']:.0e}), the "
                f"gradient's norm of {parity['array']} {norm} (allowed {allowed['gradient_norm']:.0e})"
            )
        found += [f"sharding not as planned: {line}" for line in self.events.get("compiled", {}).get("wrong", [])]
        failed = self.events.get("failed", {})
        if failed.get("kind") == "VerdictError":
            found.append(failed["message"].rstrip("."))
        return found

    def mfu(self) -> tuple[dict[str, Any] | None, str]:
        """MFU with its convention; else None and why not."""
        facts, times = self.events.get("facts"), self.times
        if facts is None or times is None or "attached" not in self.events:
            return None, "no step was timed"
        kind, dtype = self.events["attached"]["device_kind"], facts["compute_dtype"]
        if facts["peak_flops_per_s"] is None:
            return None, f"the peak of {kind} in {dtype} is not in the catalogue"
        peak = facts["peak_flops_per_s"] * self.plan.machine.devices
        known = "measured" if self.plan.machine.kind == "cpu" else "data sheet's"
        value = facts["needed_flops"] / (peak * times.median_s)
        return {"value": value, "convention": CONVENTION.format(dtype=dtype, peak=known)}, ""

    def remarks(self) -> list[str]:
        """Everything that must be known to read the figures."""
        found = [*self.events.get("plan", {}).get("words", ()), *self.notes]
        dispatch = [step["dispatch_s"] for step in self.taken if step["phase"] == "plain"]
        if dispatch:
            found.append(f"Dispatching a step took {statistics.median(dispatch) * 1e3:.3g} ms (median).")
        times, extra = self.times, self.overhead
        if times is not None and extra is not None and extra > MOST_OVERHEAD:
            within = statistics.median(self.seconds("profiled")) <= times.quantile_s(0.9)
            spread = ", which is within what steps without it differ by" if within else ""
            found.append(f"Profiled steps took {extra:.1%} longer{spread}: their ledger is that much longer, too.")
        profile = self.events.get("profile", {})
        if profile.get("problem"):
            found.append(profile["problem"] + ": everything else was measured.")
        if times is not None and (why := self.mfu()[1]):
            found.append(f"No MFU: {why}.")
        if self.interrupted:
            found.append(self.interrupted)
        return found

    def to_json(self) -> dict[str, Any]:
        """Schema `jaxplan.run/1`, from whatever there is."""
        told, facts, times = self.events.get("plan", {}), self.events.get("facts", {}), self.times
        memory, profile = self.events.get("memory", {}), self.events.get("profile", {})
        here = attached_from(self.events["attached"]) if "attached" in self.events else None
        parity = {k: v for k, v in self.events.get("parity", {}).items() if k != "event"}
        return {
            "schema": SCHEMA,
            "plan": str(self.path),
            "label": self.plan.label,
            "ran_on": here and {
                "platform": here.platform,
                "device_kind": here.device_kind,
                "devices": self.plan.machine.devices,
                "attached": here.devices,
                "processes": here.processes,
                "scaled": told.get("scaled"),
            },
            "workload": self.plan.workload.to_json(),
            "steps": self.steps_asked,
            "warmup": self.warmup_asked,
            "compile_s": self.events.get("compiled", {}).get("seconds"),
            "step_time_s": times and times.to_json(),
            "tokens_per_s": facts["tokens"] / times.median_s if times and facts else None,
            "mfu": self.mfu()[0],
            "memory_bytes": {
                "peak_per_device": memory.get("peak_per_device"),
                "why_not": memory.get("why_not", "the run ended before"),
            },
            "loss": [step["loss"] for step in self.taken],
            "gradient_norm": [step["gradient_norm"] for step in self.taken],
            "parity": parity or {"checked": False, "passed": False, "why_not": "it was not asked for, or not reached"},
            "finite": self.bad_step is None,
            "first_bad_step": None if self.bad_step is None else self.bad_step["number"],
            "stragglers": [{"device": device, "behind_s": behind} for device, behind in self.stragglers],
            "profiler": {
                "session": profile.get("session"),
                "overhead": self.overhead,
                "steps": len(self.seconds("profiled")),
                "path": profile.get("path"),
            },
            "ledger": [{"name": name, "seconds": seconds} for name, seconds in self.ledger],
            "compared": [
                {"name": name, "estimated_s": estimated, "compiled_s": compiled, "measured_s": measured}
                for name, estimated, compiled, measured in self.compared
            ],
            "findings": list(self.findings),
            "calibration": self.calibration,
            "against": self.against,
            "notes": self.remarks(),
        }


def _share(value: float | None) -> str:
    return "infinitely" if value is None else f"{value:.2g}"
