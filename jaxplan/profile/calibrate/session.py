"""A calibration from start to end: which pieces are timed in which worker, and what is made of the timings.

Every number of devices is measured in a worker of its own, since JAX fixes it when it starts. What is known so far is
handed to `keep` after each of them, so that an interruption loses one of them and no more. No JAX in this process.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxplan.compile import host
from jaxplan.compile.environment import Environment, environment
from jaxplan.compile.worker import Job, Outcome, run
from jaxplan.errors import JaxplanError, MissingError
from jaxplan.machine.attached import FRESH, AttachedCalibration, Figure, Residual
from jaxplan.plan.record import installed_versions
from jaxplan.profile.calibrate.collectives import group_sizes
from jaxplan.profile.calibrate.fit import fit
from jaxplan.profile.calibrate.kernels import TURN
from jaxplan.profile.calibrate.overlap import hidden
from jaxplan.profile.calibrate.touch import first_touch_s

LIMIT_S = 900.0         # of one worker: a hang, not a slow machine
SHORT = {"bfloat16": "bf16", "float32": "f32"}
MEASURES = "jaxplan.profile.calibrate.measure"

Say = Callable[[str], None]


@dataclass
class Session:
    """One calibration under way.

    Attributes:
        virtual: the most virtual CPU devices; None for the machine that JAX finds attached.
        keep: is given the calibration so far, after each number of devices.
        say: is told what is being done.
    """

    name: str
    virtual: int | None
    quick: bool
    say: Say = lambda _: None
    keep: Callable[[AttachedCalibration], None] = lambda _: None
    figures: list[Figure] = field(default_factory=list)
    residuals: list[Residual] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)

    def run(self) -> AttachedCalibration:
        """Measure everything.

        Raises:
            MissingError: no device answers.
            JaxplanError: a worker failed.
        """
        started = time.monotonic()
        about = self._attached()
        on_cpu = about["platform"] == "cpu"
        counts = counts_up_to(self.virtual or about["devices"], self.quick) if on_cpu else [about["devices"]]
        for done, count in enumerate(counts):
            place = environment(count) if on_cpu else attached_environment()
            self._measure(count, about, place)
            last = done == len(counts) - 1
            self.keep(self._calibration(about, counts, count, time.monotonic() - started, last))
        return self._calibration(about, counts, counts[-1], time.monotonic() - started, True)

    def _attached(self) -> dict[str, Any]:
        place = attached_environment() if self.virtual is None else environment(self.virtual)
        outcome = _ask("attached_job", {}, place, "what is attached")
        if not outcome.ok:
            raise MissingError(
                f"JAX finds no device here ({outcome.message})",
                "jaxplan calibrate --devices N, for N virtual CPU devices",
            )
        about = dict(outcome.value)
        if about["platform"] == "cpu":
            about["device_kind"] = host.cpu_model()
            if self.virtual is None:
                self.say(f"JAX finds no accelerator, {about['devices']} CPU device: --devices N for N virtual ones")
        return about

    def _measure(self, count: int, about: Mapping[str, Any], place: Environment) -> None:
        """Everything about one number of devices."""
        large, effort = about["platform"] != "cpu", "quick" if self.quick else "full"
        self.say(f"{count} device{'s' if count > 1 else ''}: matmuls, memory, loops")
        arguments: dict[str, Any] = {"effort": effort, "large": large}
        timed = _value(_ask("kernels_job", arguments, place, f"kernels on {count}"))
        self._note(timed)
        self._kernels(without_turns(timed["pieces"]) if large else timed["pieces"], count, large)
        if count == 1:
            return
        self.say(f"{count} devices: collectives")
        own = count if about["platform"] == "cpu" else about["per_process"]
        timed = _value(_ask("collectives_job", {**arguments, "groups": group_sizes(count, own)}, place, "collectives"))
        self._note(timed)
        self._collectives(without_turns(timed["pieces"]) if large else timed["pieces"], count)

    def _note(self, timed: Mapping[str, Any]) -> None:
        reference = np.array(timed["reference_s"])
        self.drifts.append(float(np.median(reference) / reference.min() - 1))
        for name, why in timed["failed"].items():
            self.say(f"not measured: {name}: {why}")

    def _kernels(self, pieces: Sequence[Mapping[str, Any]], count: int, large: bool) -> None:
        good = [piece for piece in pieces if piece["seconds"] > 0]
        for name, value, unit in rates(good):
            self.figures.append(Figure("rate", name, six_digits(value), unit, count))
        if large:
            return
        found = fit([piece["work"] for piece in good], [piece["seconds"] for piece in good])
        prices = {**found.prices, FRESH: first_touch_s(count, host.cores())}
        self.figures += [Figure("price", kind, six_digits(price), "s", count) for kind, price in prices.items()]
        self.residuals.append(Residual("kernels", count, len(good), six_digits(found.median), six_digits(found.worst)))

    def _collectives(self, pieces: Sequence[Mapping[str, Any]], count: int) -> None:
        errors: list[float] = []
        if (share := hidden(pieces)) is not None:
            self.figures.append(Figure("rate", "hidden", six_digits(share), "1", count))
        good = [piece for piece in pieces if piece.get("kind") and piece["seconds"] > 0]
        for kind, group in sorted({(piece["kind"], piece["group"]) for piece in good}):
            some = [p for p in good if (p["kind"], p["group"]) == (kind, group)]
            found = fit([{"start": 1.0, "byte": float(p["bytes"])} for p in some], [p["seconds"] for p in some])
            errors += found.errors
            for what, unit in (("start", "s"), ("byte", "s/B")):
                price = six_digits(found.prices[what])
                self.figures.append(Figure("collective", f"{kind} {what}", price, unit, count, group))
        if errors:
            off = np.abs(errors)
            median, worst = six_digits(np.median(off)), six_digits(off.max())
            self.residuals.append(Residual("collectives", count, len(off), median, worst))

    def _calibration(
        self, about: Mapping[str, Any], counts: Sequence[int], count: int, seconds: float, complete: bool
    ) -> AttachedCalibration:
        versions = {**installed_versions(), "runtime": about["runtime"]}
        return AttachedCalibration(
            name=self.name,
            platform=about["platform"],
            device_kind=about["device_kind"],
            date=datetime.date.today().isoformat(),
            devices=count,
            devices_per_host=count if about["platform"] == "cpu" else about["per_process"],
            cores=host.cores(),
            memory_bytes=host.memory_bytes(),
            figures=tuple(self.figures),
            residuals=tuple(self.residuals),
            versions=versions,
            drift=six_digits(max(self.drifts)),
            seconds=round(seconds, 1),
            complete=complete,
        )


def rates(pieces: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, str]]:
    """(name, value, unit) of the rates of one device that the pieces amount to.

    The peak of a dtype is the best matmul's rate; what matmuls and passes over memory reach is their median.
    """
    found: list[tuple[str, float, str]] = []
    by_dtype = {
        dtype: [p["flops"] / p["seconds"] for p in pieces if p["name"].startswith(f"matmul {short} ")]
        for dtype, short in SHORT.items()
    }
    for dtype, reached in by_dtype.items():
        if reached:
            found.append((f"matmul peak {dtype}", max(reached), "FLOP/s"))
            found.append((f"matmul {dtype}", float(np.median(reached)), "FLOP/s"))
    attention = [p["flops"] / p["seconds"] for p in pieces if p["family"] == "attention" or " x" in p["name"]]
    passes = [p["moved"] / p["seconds"] for p in pieces if p["family"] in ("memory", "elementwise", "reduction")]
    launches = [p["launch_s"] for p in pieces]
    for name, reached, unit in (("attention", attention, "FLOP/s"), ("memory", passes, "B/s")):
        if reached:
            found.append((name, float(np.median(reached)), unit))
    return [*found, ("launch", min(launches), "s")] if launches else found


def without_turns(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pieces without what a turn of their loop takes; what hardly takes more than that is left out.

    An accelerator's host asks after every turn whether there is another one. On CPUs that is an operation like others.
    """
    turn_s = next((piece["seconds"] for piece in pieces if piece["name"] == TURN), 0.0)
    return [{**p, "seconds": p["seconds"] - turn_s} for p in pieces if p["seconds"] > 2 * turn_s]


def six_digits(value: float) -> float:
    """As a file needs it: no timing is known to more."""
    return float(f"{value:.6g}")


def counts_up_to(most: int, quick: bool) -> list[int]:
    """How many devices work at once: 1, 2, 4, ... and `most`; in a hurry the first and the last."""
    powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
    return sorted({1, most} if quick else {*powers, most})


def attached_environment() -> Environment:
    """The environment of a worker that uses the devices that JAX finds, whatever they are."""
    return Environment(variables=(("PYTHONUNBUFFERED", "1"),), dropped=())


def _ask(function: str, arguments: Mapping[str, Any], place: Environment, label: str) -> Outcome:
    return run(Job(f"{MEASURES}:{function}", arguments, place, LIMIT_S, label=label))


def _value(outcome: Outcome) -> dict[str, Any]:
    if not outcome.ok:
        raise JaxplanError(f"measuring failed: {outcome.status}: {outcome.message.partition(chr(10))[0]}")
    return outcome.value
