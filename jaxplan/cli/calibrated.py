"""`--calibration NAME|PATH`: machines and recorded plans at the rates that were measured on the attached machine."""

from __future__ import annotations

import math
from dataclasses import replace

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.attached import AttachedCalibration, load
from jaxplan.machine.attached_machine import attached_machine, calibrated
from jaxplan.machine.topology import Machine
from jaxplan.plan.record import PlanRecord

HELP = "measured rates of this very chip: a name or a file of `jaxplan calibrate`"
CPU = "cpu"
TIMED = ("step_time_s", "schedule")     # what evidence says of time: at rates that are not the calibration's


def machine_of(
    mesh: str | None, chip: str | None, machine: str | None, slices: int | None, calibration: str | None
) -> Machine:
    """The machine that the flags name, at the calibration's rates where there is one.

    `--chip cpu` is a number of virtual CPU devices of a calibrated host.

    Raises:
        InputError: no such machine; a calibration of another chip; `--chip cpu` without one.
    """
    if chip != CPU:
        found = catalogue.machine(mesh, chip, machine, slices)
        return found if calibration is None else _noted(calibrated(found, load(calibration)))
    if calibration is None:
        raise InputError(
            "--chip cpu has no data sheet", "--calibration NAME, of this host",
            "`jaxplan calibrate --devices N --name NAME` first",
        )  # fmt: skip
    shape = catalogue.parse_shape(mesh or "1")
    return _noted(attached_machine(load(calibration), math.prod(shape)))


def _noted(machine: Machine) -> Machine:
    """The machine with what must be said of its calibration."""
    assert machine.attached is not None
    return replace(machine, notes=(*machine.notes, *remarks(machine.attached)))


def remarks(known: AttachedCalibration) -> list[str]:
    """What must be said of figures that come from a calibration."""
    notes = [f"rates are {known.said}"]
    if known.noisy:
        notes.append(f"that calibration is noisy: its reference was {known.drift:.0%} slower than at its fastest")
    if not known.complete:
        notes.append("that calibration was interrupted: what it lacks is taken from published figures")
    return notes


def at_rates_of(record: PlanRecord, calibration: str | None) -> PlanRecord:
    """The record at the calibration's rates; what it recorded of time at other rates is left out.

    Raises:
        InputError: no such calibration, or one of another chip.
    """
    if calibration is None:
        return record
    found = load(calibration)
    if record.plan.machine.attached == found:
        return record
    machine = _noted(calibrated(record.plan.machine, found))
    plan = replace(record.plan, machine=machine)
    untimed = {
        tier: {key: value for key, value in found.items() if key not in TIMED}
        for tier, found in record.evidence.items()
    }
    fingerprint = record.fingerprint if record.stale else plan.fingerprint
    return replace(record, plan=plan, fingerprint=fingerprint, evidence=untimed, time=None)
