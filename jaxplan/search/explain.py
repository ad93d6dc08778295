"""What the step of one plan is made of: its ledgers, rooflines, mesh axes and schedules. No JAX here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.ledger import Estimate, estimate_of
from jaxplan.estimate.network import Network
from jaxplan.estimate.single import prepared
from jaxplan.estimate.terms import VARIABLES
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import PlanRecord
from jaxplan.plan.sharding import AXES
from jaxplan.search.axis_use import AxisUse, Moved, axis_use, large_axes, moved_by
from jaxplan.search.orders import Order, orders
from jaxplan.search.roofline import ON_MATRIX_UNITS, Chip, Roofline, chip_of, rooflines
from jaxplan.workload.table import Table


@dataclass(frozen=True)
class Anatomy:
    """What one plan's step is made of, as estimated.

    Attributes:
        model_flops: of the whole step, what the mathematics needs.
        executed_flops: of all devices, on their matrix units: with what is recomputed and what runs in the bubble.
        bubble: time of the pipeline over the time of its work.
    """

    plan: Plan
    estimate: Estimate
    chip: Chip
    rooflines: tuple[Roofline, ...]
    moved: tuple[Moved, ...]
    axes: tuple[AxisUse, ...]
    orders: tuple[Order, ...]
    model_flops: float
    executed_flops: float
    bubble: float

    def mfu(self, step_s: float) -> float:
        """The part of the machine's peak that the model's FLOPs make in a step of that length."""
        return self.model_flops / (self.plan.machine.devices * self.chip.flops_per_s * step_s)


def anatomy(plan: Plan, table: Table) -> Anatomy:
    """What a plan's step is made of.

    Args:
        table: of the plan's workload.

    Raises:
        InputError: the catalogue has no matmul rate of the chip for the program's dtype; an axis that we do not know;
            a mesh that cannot be laid on the machine.
    """
    chip = chip_of(plan.machine, table)
    unknown = [axis for axis in plan.sizes if axis not in AXES]
    if unknown:
        raise InputError(f"the mesh has an axis {unknown[0]!r}", f"axes among {', '.join(AXES)}")
    sizes = tuple(plan.size(axis) for axis in AXES)
    estimator, variables = prepared(plan, table)
    network = Network(plan.machine, [sizes])
    if network.illegal:
        raise InputError(network.illegal[0], "a mesh made of the machine's levels")
    here = estimator.evaluate(variables, np.array([0]), network)
    bubble = float(variables[0, VARIABLES.index("bubble")])
    moved = moved_by(here, variables, plan)
    matrix = [i for i, entry in enumerate(here.works) if entry.kind in ON_MATRIX_UNITS]
    return Anatomy(
        plan=plan,
        estimate=estimate_of(here, 0, sizes, bubble),
        chip=chip,
        rooflines=rooflines(here, variables, bubble, chip),
        moved=moved,
        axes=tuple(axis_use(axis, plan, estimator, variables, network, moved) for axis in large_axes(plan)),
        orders=orders(plan, table),
        model_flops=table.needed_flops(plan.workload.room_factor),
        executed_flops=float(here.flops[0, matrix].sum()) * plan.machine.devices,
        bubble=bubble,
    )


@dataclass(frozen=True)
class Correction:
    """What is known of a plan over what was estimated when it was found: 1 where nobody knows better.

    Either the plan itself was compiled, or plans like it were, and their median is applied to it.
    """

    memory: float = 1.0
    time: float = 1.0


def correction(record: PlanRecord) -> Correction:
    """The correction that a plan file amounts to; none where the plan was changed since.

    Raises:
        TypeError, ValueError: the file's evidence is not what a search writes.
    """
    if record.stale:
        return Correction()
    memory, time = dict(record.compared("total_bytes")), dict(record.compared("step_time_s"))
    return Correction(
        _over(record.memory and record.memory.total_bytes, memory.get("estimated")),
        _over(record.time and record.time.value_s, time.get("estimated")),
    )


def _over(known: float | None, estimated: float | None) -> float:
    return known / estimated if known and estimated else 1.0
