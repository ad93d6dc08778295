"""How training goes on when a part of its machine is gone: ways to keep, or nearly keep, the global batch. No JAX here.

Every way is a machine and a workload, which the same search as ever takes: fewer replicas and more accumulation are
candidates of it like any other. Only plans that a checkpoint of the running plan can be restored to are searched: the
state's arrays are the same on every mesh, and so resharding is enough, except where pipelines with repeats store layers
in an order of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from jaxplan.errors import InputError
from jaxplan.machine.family import Family
from jaxplan.machine.left import without
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import LeafSpec
from jaxplan.plan.schedule import layer_order
from jaxplan.search.batches import LearningRate, divides, divisible, row_divisors
from jaxplan.search.space import Space, enumerate_space
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

Kind = Literal["exact", "idle", "padded", "nearest", "whole"]
OTHER_ORDER = "layers would be stored in another order than in the running plan's checkpoints"
ROWS = ("mesh", "policy", "rules", "schedule", "repeats", "microbatches", "loss_chunks")


@dataclass(frozen=True)
class Way:
    """One way to train on what is left.

    Attributes:
        kind: `exact` the batch on every chip; `idle` the batch on fewer chips than are left; `padded` more rows a step,
            of which those above the batch are padding; `nearest` another batch, as near as possible; `whole` another
            batch, of which every device has rows of its own.
        machine: what the plan uses.
        workload: what a step runs: its batch counts padding.
        rows: sequences of a step that count, the optimizer's batch.
        left_chips: that there are.
    """

    kind: Kind
    machine: Machine
    workload: Workload
    rows: int
    left_chips: int

    def __post_init__(self) -> None:
        if not 0 < self.rows <= self.workload.batch:
            raise ValueError(f"rows must be from 1 to the batch {self.workload.batch}, got {self.rows}")
        if self.machine.chips > self.left_chips:
            raise ValueError(f"{self.machine.chips} chips are used of {self.left_chips} that are left")

    @property
    def idle_chips(self) -> int:
        return self.left_chips - self.machine.chips

    @property
    def padding(self) -> int:
        return self.workload.batch - self.rows

    def learning_rate(self, batch: int) -> LearningRate | None:
        """What the learning rate is multiplied by, coming from `batch`; None where the batch is kept."""
        return None if self.rows == batch else LearningRate(self.rows / batch)


def ways(workload: Workload, table: Table, left: Machine, family: Family | None) -> tuple[Way, ...]:
    """All ways, those that keep the batch first; one alone where the batch is kept on every chip.

    Of the kind `padded` there may be several, of which the fastest is wanted.

    Args:
        left: the machine without what is lost.
        family: that it was made from.
    """
    batch = workload.batch

    def way(kind: Kind, machine: Machine, rows_run: int, rows: int) -> Way:
        other = workload if rows_run == batch else replace(workload, batch=rows_run, defaults=())
        return Way(kind, machine, other, rows, left.chips)

    if divides(workload, table, left):
        return (way("exact", left, batch, batch),)
    found = []
    fewer = _largest_that_divides(workload, table, left, family)
    if fewer is not None:
        found.append(way("idle", fewer, batch, batch))
    parts = row_divisors(workload, table, left)
    if parts:
        near = divisible(batch, parts, left.devices)
        found += [way("padded", left, above, batch) for above in near.above]
        found.append(way("nearest", left, near.nearest, near.nearest))
        if near.whole != near.nearest:
            found.append(way("whole", left, near.whole, near.whole))
    return tuple(found)


def _largest_that_divides(workload: Workload, table: Table, left: Machine, family: Family | None) -> Machine | None:
    """The largest part of a machine that divides the batch on all of its chips."""
    lost = 1
    while (fewer := without(left, lost, family)) is not None:
        if divides(workload, table, fewer):
            return fewer
        lost += 1
    return None


def restorable(space: Space, plan: Plan) -> Space:
    """The candidates that a checkpoint of `plan` can be restored to by resharding alone.

    Raises:
        InputError: there is none.
    """
    model = space.workload.model
    if model is None:
        return space
    layers = model.repeated_layers
    stages = space.size_of("stage")
    wanted = layer_order(layers, plan.stages, plan.repeats)
    pairs, which = np.unique(np.column_stack([stages, space.repeats]), axis=0, return_inverse=True)
    alike = np.array([layer_order(layers, *map(int, pair)) == wanted for pair in pairs])[which.reshape(-1)]
    if not alike.any():
        raise InputError(f"{len(space):,} plans, and in each {OTHER_ORDER}", "a running plan without repeats")
    if alike.all():
        return space
    rejected = {**space.rejected, OTHER_ORDER: int((~alike).sum())}
    return replace(space, rejected=rejected, **{name: getattr(space, name)[alike] for name in ROWS})


def candidates(way: Way, table: Table, plan: Plan) -> Space:
    """All candidates of a way that can take over from the running plan.

    Args:
        table: of the way's workload.

    Raises:
        InputError: there is none.
    """
    return restorable(enumerate_space(way.workload, table, way.machine), plan)


def same_state(before: Sequence[LeafSpec], after: Sequence[LeafSpec]) -> bool:
    """Whether two plans keep the same arrays: the same paths, shapes and dtypes, wherever they lie."""
    return {(x.path, x.shape, x.dtype) for x in before} == {(x.path, x.shape, x.dtype) for x in after}


def relative_throughput(batch: int, step_s: float, rows: int, other_step_s: float) -> float:
    """Sequences a second of one plan over those of another: (rows / other_step_s) / (batch / step_s).

    Both times must be of the same source: what the estimates get wrong of both cancels.
    """
    return rows * step_s / (batch * other_step_s)
