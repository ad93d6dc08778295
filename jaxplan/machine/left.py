"""What is left of a machine when hosts or slices of it are gone. No JAX here.

GPU hosts are in one network: without some of them it is the same machine with fewer hosts. Of several TPU slices the
others remain. A single TPU slice that loses a host is no slice any more: what can be had instead is a smaller one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jaxplan.machine.family import Family, even_domain
from jaxplan.machine.slices import Shape, SliceRule
from jaxplan.machine.topology import Machine


@dataclass(frozen=True)
class Unit:
    """What a failed host takes out of a machine.

    Attributes:
        word: `host`, `slice` (of several), or `size`: a step down to the next smaller slice.
        hosts: of one unit.
        count: of the machine.
    """

    word: str
    hosts: int
    count: int


def unit_of(machine: Machine) -> Unit:
    """The unit in which a machine shrinks."""
    if machine.kind != "tpu":
        return Unit("host", 1, machine.hosts)
    if machine.slices > 1:
        return Unit("slice", machine.hosts // machine.slices, machine.slices)
    return Unit("size", machine.hosts, 1)


def without(machine: Machine, lost: int, family: Family | None) -> Machine | None:
    """The machine without so many units; None where nothing is left.

    Args:
        lost: units (`unit_of`); of a single slice: steps down to smaller slices.
        family: that the machine was made from; asked about smaller slices alone, of which there are none without it.
    """
    if lost < 0:
        raise ValueError(f"lost must be at least 0, got {lost}")
    if lost == 0:
        return machine
    unit = unit_of(machine)
    if unit.word == "size":
        return _smaller_slice(machine, lost, family)
    if lost >= unit.count:
        return None
    return _fewer_slices(machine, lost) if unit.word == "slice" else _fewer_hosts(machine, lost)


def _fewer_hosts(machine: Machine, lost: int) -> Machine:
    hosts, per_host = machine.hosts - lost, machine.chips_per_host
    domain, said = even_domain(hosts * per_host, per_host, machine.domain_chips)
    return replace(
        machine,
        name=f"{machine.chip.id} {hosts}x{per_host}",
        shape=(hosts, per_host),
        domain_chips=domain,
        topology_name=f"{hosts}x{per_host}x1",
        notes=said,
        defaults=(),
    )


def _fewer_slices(machine: Machine, lost: int) -> Machine:
    """The slices that remain are what they were."""
    fewer = replace(machine, slices=machine.slices - lost, notes=(), defaults=())
    return replace(fewer, name=f"{machine.chip.id} {fewer.mesh}")


def _smaller_slice(machine: Machine, lost: int, family: Family | None) -> Machine | None:
    if family is None or family.slices is None:
        return None
    smaller = smaller_slices(machine.shape, family.slices)
    return family.machine(smaller[lost - 1]) if lost <= len(smaller) else None


def smaller_slices(shape: Shape, rule: SliceRule) -> tuple[Shape, ...]:
    """The legal slices that a box can be cut down to, largest first; of those of one size the most cubic one."""
    whole = sorted(shape)
    best: dict[int, Shape] = {}
    for found in rule.shapes():
        chips = math.prod(found)
        if chips < math.prod(shape) and all(n <= most for n, most in zip(sorted(found), whole, strict=True)):
            best[chips] = min(best.get(chips, found), found, key=lambda s: (max(s), s))
    return tuple(best[chips] for chips in sorted(best, reverse=True))
