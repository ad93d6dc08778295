"""What would fit, when nothing does: more chips, larger chips, a smaller optimizer. Estimates only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxplan.errors import JaxplanError
from jaxplan.machine import catalogue
from jaxplan.machine.topology import Machine
from jaxplan.search.rank import rank
from jaxplan.search.space import enumerate_space
from jaxplan.units import format_seconds
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

DOUBLINGS = 6


def changes_that_fit(table: Table, workload: Workload, machine: Machine) -> list[str]:
    """The fewest chips of the same kind that fit, and the same number of larger chips; each with its step time."""
    changes = []
    for candidates in (_more_chips(machine), _larger_chips(machine)):
        for other in candidates:
            seconds = best_time_s(table, workload, other)
            if seconds is not None:
                changes.append(f"{other.name} ({format_seconds(seconds)} a step, estimated)")
                break
    return changes


def best_time_s(table: Table, workload: Workload, machine: Machine) -> float | None:
    """The fastest estimated step of a workload on a machine; None where nothing fits or divides."""
    try:
        ranking = rank(enumerate_space(workload, table, machine), table, machine)
    except JaxplanError:
        return None
    order = ranking.order()
    return float(ranking.value_s[order[0]]) if len(order) else None


def _more_chips(machine: Machine) -> Iterator[Machine]:
    family = catalogue.family(machine.family)
    for doubling in range(1, DOUBLINGS + 1):
        try:
            yield family.of_chips(machine.chips * 2**doubling)
        except JaxplanError:
            continue


def _larger_chips(machine: Machine) -> Iterator[Machine]:
    """The same number of chips of the same kind with more memory, smallest first."""
    larger = [
        family
        for family in catalogue.families()
        if family.chip.kind == machine.chip.kind and family.chip.hbm_usable_bytes > machine.chip.hbm_usable_bytes
    ]
    for family in sorted(larger, key=lambda f: f.chip.hbm_usable_bytes):
        try:
            yield replace(family.of_chips(machine.chips), memory_fraction=machine.memory_fraction)
        except (JaxplanError, ValueError):
            continue
