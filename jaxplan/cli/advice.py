"""What would fit, when nothing does: a smaller workload, more chips, larger chips. Estimates only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jaxplan.cli.request import DEFAULT_SEQUENCES_PER_DEVICE
from jaxplan.errors import JaxplanError
from jaxplan.machine import catalogue
from jaxplan.machine.attached_machine import calibrated
from jaxplan.machine.family import Family, text
from jaxplan.machine.topology import Machine
from jaxplan.search.rank import rank
from jaxplan.search.space import enumerate_space
from jaxplan.search.why import Change, smaller_workloads
from jaxplan.units import format_seconds
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

DOUBLINGS = 12

Trace = Callable[[Workload], Table]


def changes_that_fit(workload: Workload, machine: Machine, trace: Trace) -> list[Change]:
    """The smallest change of each kind: the workload, the number of chips, the kind of chips; else both of these."""
    traced: dict[Workload, Table] = {}

    def table(work: Workload) -> Table:
        if work not in traced:
            traced[work] = trace(work)
        return traced[work]

    found = []
    for words, flags, other in smaller_workloads(workload):
        found += _change(words, flags, other, machine, table)[:1]
    for machines in (_more_chips(machine), _larger_chips(machine)):
        found += _first(machines, workload, table)
    return found or _first(_more_larger_chips(machine), workload, table)


def _first(machines: Iterable[Machine], workload: Workload, table: Trace) -> list[Change]:
    """The first machine that the workload fits."""
    for machine in machines:
        flags = f"--mesh {text(machine.shape)} --machine {machine.family}"
        change = _change(machine.name, flags, _scaled(workload, machine), machine, table)
        if change:
            return change
    return []


def _change(words: str, flags: str, workload: Workload, machine: Machine, table: Trace) -> list[Change]:
    """The change, if the workload then fits; with the step time and memory of its best plan."""
    try:
        traced = table(workload)
        ranking = rank(enumerate_space(workload, traced, machine), traced, machine)
    except JaxplanError:
        return []
    order = ranking.order()
    if not len(order):
        return []
    seconds = format_seconds(float(ranking.value_s[order[0]]))
    return [Change(f"{words} ({seconds} a step, estimated)", flags, float(ranking.total_bytes[order[0]]))]


def _scaled(workload: Workload, machine: Machine) -> Workload:
    """The workload that the same command has on another machine: a batch that was assumed grows with it."""
    if "batch" not in workload.defaults:
        return workload
    return replace(workload, batch=DEFAULT_SEQUENCES_PER_DEVICE * machine.devices)


def _more_chips(machine: Machine) -> Iterator[Machine]:
    if machine.kind == "cpu":
        return iter(())     # more virtual devices share the same memory
    return _doubled(machine, catalogue.family(machine.family))


def _doubled(machine: Machine, family: Family) -> Iterator[Machine]:
    for doubling in range(1, DOUBLINGS + 1):
        try:
            yield _alike(machine, family.of_chips(machine.chips * 2**doubling))
        except (JaxplanError, ValueError):
            continue


def _larger_families(machine: Machine) -> list[Family]:
    """Families of the same kind whose chips have more memory, smallest first."""
    families = [family for family in catalogue.families() if family.chip.kind == machine.chip.kind]
    usable = machine.chip.hbm_usable_bytes
    larger = [family for family in families if family.chip.hbm_usable_bytes > usable]
    return sorted(larger, key=lambda family: family.chip.hbm_usable_bytes)


def _larger_chips(machine: Machine) -> Iterator[Machine]:
    for family in _larger_families(machine):
        try:
            yield _alike(machine, family.of_chips(machine.chips))
        except (JaxplanError, ValueError):
            continue


def _more_larger_chips(machine: Machine) -> Iterator[Machine]:
    """Of every larger kind of chip, twice as many and more: the fewest chips first."""
    found = [other for family in _larger_families(machine) for other in _doubled(machine, family)]
    return iter(sorted(found, key=lambda other: other.chips))


def _alike(machine: Machine, other: Machine) -> Machine:
    """With the share of memory that the user gives to the program, and at measured rates where those of it are."""
    other = replace(other, memory_fraction=machine.memory_fraction)
    if machine.attached is None or other.chip.id != machine.chip.id:
        return other
    return calibrated(other, machine.attached)
