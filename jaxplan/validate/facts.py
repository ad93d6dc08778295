"""Everything that the formulas need of one published run."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from jaxplan.estimate.shapes.facts import Chip, Facts
from jaxplan.machine import files
from jaxplan.machine.topology import Machine
from jaxplan.units import GB
from jaxplan.validate.choices import choices_of
from jaxplan.validate.framework import Profile, profile_of
from jaxplan.validate.layouts import layout_of
from jaxplan.validate.machines import machine_of
from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import PublishedRun

PCIE_BYTES_PER_S = 15 * GB


@dataclass(frozen=True)
class Case:
    """A published run as the formulas take it.

    Attributes:
        measured_matmul: of the peak, by large matmuls under load on the run's own machine, where its source measured
            that apart from the run (`profiling/published/measured.toml`).
    """

    run: PublishedRun
    machine: Machine
    profile: Profile
    facts: Facts
    measured_matmul: float | None = None


@cache
def _measured() -> list[dict]:
    return tomllib.loads((files.folder("profiling/published") / "measured.toml").read_text())["machine"]


def measured_matmul(run: PublishedRun, chip_id: str) -> float | None:
    """What the run's source measured of its own machine's matmuls."""
    found = (m for m in _measured() if run.source.startswith(m["runs_of"]) and m["chip"] == chip_id)
    return next((m["matmul_fraction"] for m in found), None)


def chip_of(run: PublishedRun, machine: Machine) -> Chip:
    """The chip of one device."""
    chip = machine.chip
    peaks = chip.matmul_flops_per_s
    wide = machine.device_flops_per_s("bfloat16")
    precision = (run.precision or "").lower()
    narrow = "float4" if "fp4" in precision else "int8" if "int8" in precision else "float8"
    narrow_flops = machine.device_flops_per_s(narrow) if narrow in peaks else wide
    host = machine.device_host_bytes_per_s or PCIE_BYTES_PER_S
    return Chip(
        tpu=float(machine.kind == "tpu"),
        flops_per_s=wide,
        narrow_flops_per_s=narrow_flops,
        hbm_bytes_per_s=machine.device_hbm_bytes_per_s,
        host_bytes_per_s=host,
        cores=getattr(chip, "core_count", 0) or 132,
        tile=getattr(chip, "mxu_size", 0) or 128,
        capacity_bytes=chip.hbm_usable_bytes / chip.devices_per_chip,
    )


def case_of(run: PublishedRun) -> Case:
    """The run's facts.

    Raises:
        Unpredictable: too little is known of it.
    """
    if run.unreadable:
        raise Unpredictable(run.unreadable)
    model = model_of(run.model)
    machine = machine_of(run)
    profile = profile_of(run, machine.kind)
    layout = layout_of(run, machine)
    choices = choices_of(run, model, profile, machine.kind == "tpu")
    facts = Facts(model, layout, chip_of(run, machine), choices, profile.habits(run))
    return Case(run, machine, profile, facts, measured_matmul(run, machine.chip.id))

