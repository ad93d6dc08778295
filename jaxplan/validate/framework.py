"""Profiles of frameworks: what each does by itself, as data with reasons (`profiling/frameworks/*.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from jaxplan.estimate.shapes.facts import Habits
from jaxplan.machine import files
from jaxplan.validate.published import PublishedRun

FOLDER = "profiling/frameworks"


@dataclass(frozen=True)
class Profile:
    """One family of frameworks; the switches are described in `profiling/frameworks/README.md`.

    Attributes:
        order: in which profiles are asked whether they know a framework.
        matches: parts of a framework's name (small letters) that tell it.
        but: parts that tell it is another.
        until: the last year of which that holds; 0 where it still does.
        kinds: chips that it runs on, `tpu` and `gpu`.
        group: of the statistics.
        calibrated_as: the name of its parameters in the calibration.
    """

    id: str
    name: str
    order: int
    matches: tuple[str, ...]
    but: tuple[str, ...]
    until: int
    kinds: tuple[str, ...]
    group: str
    calibrated_as: str
    fused_attention: bool
    causal_attention: bool
    loss_bytes_per_logit: float
    compiled_loss_bytes_per_logit: float
    kernels_per_layer: float
    compiled_kernels_per_layer: float
    overlaps_reduce: bool
    overlaps_send: bool
    uneven_stages: bool
    sequence_parallel: bool
    tensor_overlap: bool
    whole_program: bool
    context_balanced: bool
    dispatches_once: bool
    zero_stage: int
    parameter_bytes: float
    reduce_bytes: float
    default_recompute: tuple[float, float, float, float, float]

    def habits(self, run: PublishedRun) -> Habits:
        compiled = bool(run.compile)
        return Habits(
            fused_attention=float(self.fused_attention),
            causal_attention=float(self.causal_attention),
            loss_bytes_per_logit=self.compiled_loss_bytes_per_logit if compiled else self.loss_bytes_per_logit,
            kernels_per_layer=self.compiled_kernels_per_layer if compiled else self.kernels_per_layer,
            overlaps_reduce=float(self.overlaps_reduce),
            overlaps_send=float(self.overlaps_send),
            uneven_stages=float(self.uneven_stages),
        )


@cache
def profiles() -> tuple[Profile, ...]:
    """Every profile, in the order in which they are asked."""
    found = []
    for path in sorted(files.folder(FOLDER).glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        values = {key: data[key] for key in data if key not in ("time", "memory")} | data["time"]
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        found.append(Profile(**values | lists))
    return tuple(sorted(found, key=lambda profile: profile.order))


def profile_of(run: PublishedRun, kind: str) -> Profile:
    """The profile of the run's framework on that kind of chip; the last one takes what no other knows."""
    able = [profile for profile in profiles() if kind in profile.kinds]
    year = year_of(run)

    def holds(profile: Profile) -> bool:
        words = run.framework.lower()
        named = any(part in words for part in profile.matches) and not any(part in words for part in profile.but)
        return named and (not profile.until or (year is not None and year <= profile.until))

    return next((profile for profile in able if holds(profile)), able[-1])


def year_of(run: PublishedRun) -> int | None:
    """The year of a date or of a release named after it (`2023-12`, `25.11`); None where there is none."""
    number = (run.date or "").split("-")[0].split(".")[0]
    if not number.isdigit():
        return None
    return int(number) if len(number) == 4 else 2000 + int(number)
