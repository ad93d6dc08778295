"""Machines from calibrations: virtual CPU devices of this host, and a catalogue's machine at measured rates. No JAX."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.errors import InputError
from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.chip import Chip
from jaxplan.machine.device_kind import same_chip
from jaxplan.machine.topology import Machine

DTYPES = ("bfloat16", "float32")


def attached_machine(calibration: AttachedCalibration, devices: int) -> Machine:
    """So many virtual CPU devices of the host that was calibrated; every rate is of that many at work at once.

    Raises:
        InputError: the calibration is not of a CPU, or no devices are asked for.
    """
    if calibration.platform != "cpu":
        raise InputError(
            f"calibration {calibration.name} is of {calibration.device_kind}",
            "one of a CPU, whose devices are virtual",
            "--chip and --mesh with --calibration for a machine of such chips",
        )
    if devices < 1:
        raise InputError(f"{devices} devices", "at least 1")
    peaks = {dtype: _rate(calibration, f"matmul peak {dtype}", devices) for dtype in DTYPES}
    memory, source = calibration.memory_bytes // devices, calibration.said
    chip = Chip(
        id="cpu",
        name=calibration.device_kind,
        vendor="host",
        kind="cpu",
        matmul_flops_per_s=peaks,
        hbm_bytes=memory,
        hbm_usable_bytes=memory,
        hbm_bytes_per_s=_rate(calibration, "memory", devices),
        fabric="memory",
        link_bytes_per_s=_rate(calibration, "memory", devices),
        core_count=calibration.cores,
        sources={"matmul_flops_per_s": source, "hbm_bytes_per_s": source, "link_bytes_per_s": source},
    )
    return Machine(
        name=f"cpu 1x{devices}",
        family="cpu",
        chip=chip,
        shape=(1, devices),
        wraps=(False, False),
        chips_per_host=devices,
        domain_chips=devices,
        dcn_bytes_per_s_per_host=chip.link_bytes_per_s,
        attached=calibration,
    )


def _rate(calibration: AttachedCalibration, name: str, devices: int) -> float:
    found = calibration.rate(name, devices)
    if found is None:
        raise InputError(
            f"calibration {calibration.name} has no rate {name!r}: it was interrupted", "a whole one",
            f"`jaxplan calibrate --name {calibration.name}`",
        )  # fmt: skip
    return found


def calibrated(machine: Machine, calibration: AttachedCalibration) -> Machine:
    """The machine at the rates that were measured on such chips.

    A group's links keep the catalogue's rates; the part of them that collectives reach, and their start, are measured.

    Raises:
        InputError: the calibration is of another chip.
    """
    chip = machine.chip
    same = chip.kind == calibration.platform and (chip.kind == "cpu" or same_chip(chip, calibration.device_kind))
    if not same:
        raise InputError(
            f"calibration {calibration.name} was made on {calibration.device_kind}; "
            f"the machine {machine.name} has {chip.name}",
            "a calibration of the machine's own chip",
            f"`jaxplan calibrate` on a host with {chip.name}, or no --calibration",
        )
    if chip.kind == "cpu":
        return attached_machine(calibration, machine.devices)
    inside, outside = _reached(calibration, within=True), _reached(calibration, within=False)
    start = calibration.collective("all-gather start", calibration.devices, 2)
    chip = replace(
        chip,
        collective_fraction=_fraction(inside, chip.link_bytes_per_s, chip.collective_fraction),
        switch_reduce_fraction=0.0 if inside else chip.switch_reduce_fraction,
        launch_latency_s=chip.launch_latency_s if start is None else max(0.0, start - chip.hop_latency_s),
    )
    nic = machine.dcn_bytes_per_s_per_host / machine.chips_per_host * calibration.devices_per_host
    return replace(
        machine, chip=chip, dcn_fraction=_fraction(outside, nic, machine.dcn_fraction), attached=calibration
    )


def _reached(calibration: AttachedCalibration, within: bool) -> float | None:
    """Bytes/s of one device in the measured all-gather of the largest group within a host, or beyond one."""
    own = calibration.devices_per_host
    sizes = [size for size in calibration.groups if (size <= own) == within]
    size = (2 if calibration.platform == "tpu" and 2 in sizes else max(sizes)) if sizes else 0
    byte = calibration.collective("all-gather byte", calibration.devices, size) if size else None
    return (size - 1) / size / byte if byte else None


def _fraction(reached: float | None, rate: float, known: float) -> float:
    """The part of a rate that was reached; what the catalogue says where nothing was measured."""
    return known if reached is None else min(1.0, reached / rate)
