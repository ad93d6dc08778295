"""Everything that the formulas need of one published run."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.estimate.shapes.facts import Chip, Facts
from jaxplan.machine.topology import Machine
from jaxplan.units import GB
from jaxplan.validate.choices import choices_of, is_narrow
from jaxplan.validate.framework import Profile, profile_of
from jaxplan.validate.layouts import layout_of, machine_of
from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import PublishedRun

PCIE_BYTES_PER_S = 15 * GB


@dataclass(frozen=True)
class Case:
    """A published run as the formulas take it.

    Attributes:
        key: names of the calibration's entries that hold for it: `chip`, `kernel`, `profile`.
    """

    run: PublishedRun
    machine: Machine
    profile: Profile
    facts: Facts


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
    return Case(run, machine, profile, Facts(model, layout, chip_of(run, machine), choices, profile.habits(run)))


__all__ = ["Case", "case_of", "is_narrow"]
