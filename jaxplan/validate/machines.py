"""The machine that a published run was on."""

from __future__ import annotations

import dataclasses
import math
import re

from jaxplan.errors import InputError
from jaxplan.machine import lookup
from jaxplan.machine.family import Family
from jaxplan.machine.topology import Machine
from jaxplan.units import GBIT
from jaxplan.validate.models import Unpredictable
from jaxplan.validate.published import PublishedRun

_TORUS = re.compile(r"(?:\d+x )?(\d+(?:x\d+)+)")
_NICS = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb/s")
_TOTAL = re.compile(r"(\d+)\s*Gb/s[^,;]*per (node|GPU)")


def machine_of(run: PublishedRun) -> Machine:
    """The run's machine.

    Raises:
        Unpredictable: an unknown chip, or a number of devices that no such machine has.
    """
    try:
        chip = lookup.chip(run.chip)
        family = lookup.family_of_chip(chip)
        chips = run.n_devices / chip.devices_per_chip
        if chips < 1 or chips != int(chips):
            raise Unpredictable(f"{run.n_devices} devices are no whole number of {chip.id} chips")
        return _slices(run, family, int(chips)) if chip.kind == "tpu" else _hosts(run, family)
    except InputError as error:
        raise Unpredictable(str(error)) from error


def _slices(run: PublishedRun, family: Family, chips: int) -> Machine:
    """Slices as the source says; where it does not, one, or the fewest equal ones that so many chips can be."""
    shape = _TORUS.match(run.topology or "")
    counts = [run.n_slices] if run.n_slices else [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    for count in (count for count in counts if chips % count == 0):
        axes = tuple(int(n) for n in shape[1].split("x")) if shape else ()
        try:
            if axes and math.prod(axes) == chips // count:
                return family.machine(axes, slices=count)
            return family.of_chips(chips // count, slices=count)
        except InputError:
            continue
    raise Unpredictable(f"{chips} chips are no slices of {family.chip.id}, {run.n_slices or 'any number'} of them")


def nic_bytes_per_s(interconnect: str | None) -> tuple[float, str] | None:
    """(bytes/s, per `node` or `GPU`) of the network as a source words it; None where it does not say."""
    text = interconnect or ""
    several = _NICS.search(text)
    if several:
        return int(several[1]) * int(several[2]) * GBIT, "node"
    total = _TOTAL.search(text)
    return (int(total[1]) * GBIT, total[2]) if total else None


def _hosts(run: PublishedRun, family: Family) -> Machine:
    """Hosts as the run had them, or as the catalogue has them; the network as the source words it, if it does."""
    per_host = min(run.devices_per_node or family.chips_per_host, run.n_devices)
    hosts = math.ceil(run.n_devices / per_host)
    if per_host == family.chips_per_host:
        made = family.machine((hosts, per_host))
    else:
        whole = family.machine((1, family.chips_per_host))
        made = dataclasses.replace(
            whole,
            name=f"{family.chip.id} {hosts}x{per_host}",
            shape=(hosts, per_host),
            chips_per_host=per_host,
            domain_chips=per_host,
            dcn_bytes_per_s_per_host=whole.dcn_bytes_per_s_per_host * per_host / family.chips_per_host,
        )
    said = nic_bytes_per_s(run.interconnect)
    if said is None:
        return made
    if not said[0]:
        raise Unpredictable(f"a network of 0 Gb/s ({run.interconnect})")
    return dataclasses.replace(made, dcn_bytes_per_s_per_host=said[0] * (per_host if said[1] == "GPU" else 1))
