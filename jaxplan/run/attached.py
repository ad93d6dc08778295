"""What is attached, as plain data, and the machine that it makes. No JAX here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxplan.machine import catalogue
from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.attached_machine import attached_machine, calibrated
from jaxplan.machine.chip import Chip
from jaxplan.machine.device_kind import same_chip
from jaxplan.machine.topology import Machine

#: The attention kernels that a platform's compiler has beside `blockwise`, which runs anywhere.
KERNELS = {"tpu": ("splash",), "gpu": ("cudnn",), "cpu": ()}


@dataclass(frozen=True)
class Attached:
    """The devices that a run sees.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`, as JAX says it.
        device_kind: what JAX calls one of them (`TPU v5 lite`, `NVIDIA H100 80GB HBM3`, `cpu`).
        devices: of all processes.
        process: this one's number. processes: how many there are.
    """

    platform: str
    device_kind: str
    devices: int
    process: int = 0
    processes: int = 1

    @property
    def virtual(self) -> bool:
        """Whether they are parts of the host's processor, on which times say nothing about an accelerator's."""
        return self.platform == "cpu"

    def is_chip(self, chip: Chip) -> bool:
        """Whether they are that chip of the catalogue."""
        return self.platform == chip.kind and same_chip(chip, self.device_kind)

    def are(self, machine: Machine, devices: int) -> bool:
        """Whether so many of them make that machine."""
        return devices == machine.devices and self.is_chip(machine.chip)

    def chip(self, first: Chip) -> Chip | None:
        """The chip of the catalogue that they are, that one if it fits; None where no or several chips do."""
        if self.is_chip(first):
            return first
        found = [] if self.virtual else [chip for chip in catalogue.chips() if self.is_chip(chip)]
        return found[0] if len(found) == 1 else None


def machine_of(
    attached: Attached, asked: Machine, devices: int, calibration: AttachedCalibration | None = None
) -> Machine:
    """The machine that so many of the attached devices make, at a calibration's rates where there is one.

    Where they are the asked plan's, all of them, it is the asked one. Otherwise a stand-in of one host, whose name says
    what it is: its links are not known, so that nothing is priced on it without a calibration; where the chip is not in
    the catalogue, it bears the asked chip's figures, of which a run reads none.

    Raises:
        InputError: the calibration is of another chip.
    """
    if calibration is not None and attached.virtual:
        return attached_machine(calibration, devices)
    machine = asked if attached.are(asked, devices) else _stand_in(attached, asked, devices)
    return machine if calibration is None else calibrated(machine, calibration)


def _stand_in(attached: Attached, asked: Machine, devices: int) -> Machine:
    chip = attached.chip(asked.chip)
    known = chip is not None
    chip = replace(chip or asked.chip, devices_per_chip=1)
    return replace(
        asked,
        name=f"{devices} x {attached.device_kind}" + ("" if known else f" in place of {asked.name}"),
        chip=chip,
        shape=(1, devices),
        wraps=(False, False),
        chips_per_host=devices,
        domain_chips=devices,
        slices=1,
        topology_name="",
        topology_options={},
        compiler_flags=dict(asked.compiler_flags) if attached.is_chip(asked.chip) else {},
        notes=(),
        defaults=(),
    )
