"""The plan's own train step where the drill runs: scaled down to what is attached, with its data. Imports JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from jaxplan.errors import InputError
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.run.attached import machine_of
from jaxplan.run.batches import BatchOf, batches
from jaxplan.run.drill.orders import Order
from jaxplan.run.scale import VIRTUAL_STEP_FLOPS, Scaled, affordable, scaled
from jaxplan.run.train import SEED, attached, compile_once, mesh_of
from jaxplan.workload.step import TrainStep, build

#: Chosen: FLOPs of a step in the drill, the first that a model of the plan's structure can have. What a fault does to a
#: checkpoint does not depend on the model's size.
STEP_FLOPS = (2e8, 1e9, VIRTUAL_STEP_FLOPS, 2e10)
DATA_STEPS = 1024       # chosen: longer than any drill, so that no batch comes twice


@dataclass(frozen=True, eq=False)
class Program:
    """A train step of one layout."""

    reduced: Scaled
    plan: Plan
    step: TrainStep
    batch_of: BatchOf

    @property
    def facts(self) -> dict[str, Any]:
        """What the drill's parent must know, as plain data."""
        work = self.plan.workload
        return {
            "label": self.plan.label,
            "own": work.model is None,
            "experts": work.model is not None and work.model.experts is not None,
            "devices": self.plan.machine.devices,
            "batch": work.batch,
            "optimizer": work.optimizer,
            "layer_order": list(self.plan.layer_order),
            "parameter_dtype": work.parameter_dtype,
            "compute_dtype": work.compute_dtype,
            "words": list(self.reduced.words),
        }

    @cached_property
    def function(self) -> Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]:
        return compile_once(self.step.lower())

    def init(self) -> Any:
        key, make = jax.random.key(SEED), self.step.init
        return compile_once(make.lower(key))(key)       # type: ignore[attr-defined]  jitted

    def batch(self, number: int) -> Any:
        """The batch of that step, from 1: the same samples whatever the layout."""
        return self.batch_of(number - 1, self.step)


def reduced(asked: Plan) -> Scaled:
    """The plan as it is drilled here: a small model on the attached devices, with the plan's roles.

    A user's program is as large as it is, but for its batch.

    Raises:
        InputError: the plan cannot be cut to what is attached.
    """
    here = attached()
    if asked.workload.model is None:
        found = scaled(asked, here)
        work = replace(found.plan.workload, batch=found.plan.machine.devices * found.plan.microbatches)
        return replace(found, plan=replace(found.plan, workload=work))
    for limit in STEP_FLOPS[:-1]:
        with contextlib.suppress(InputError):       # no model of the plan's structure is as small
            return scaled(asked, here, lambda plan, most=limit: affordable(plan, most))
    return scaled(asked, here, lambda plan: affordable(plan, STEP_FLOPS[-1]))


def program(asked: Plan, order: Order) -> Program:
    """The reduced plan's step, as the order wants it.

    Raises:
        InputError: it cannot be built.
    """
    here, found = attached(), reduced(asked)
    plan = found.plan
    if order.optimizer:
        plan = replace(plan, workload=replace(plan.workload, optimizer=order.optimizer))
    if order.dtype:
        plan = replace(plan, workload=replace(plan.workload, parameter_dtype=order.dtype))
    if order.layout == "other":
        plan = other_layout(plan)
    batch_of, _ = batches(plan, DATA_STEPS, None)
    return Program(found, plan, build(plan, mesh_of(plan, here, asked)), batch_of)


def other_layout(plan: Plan) -> Plan:
    """Half of the devices or fewer, as many as divide the batch, along one axis that the plan does not give so many."""
    half = max(1, plan.machine.devices // 2)
    count = next(n for n in range(half, 0, -1) if plan.workload.batch % n == 0)
    to = "fsdp" if plan.size("fsdp") != count else "data"
    axes = (*(MeshAxis(a.name, 1, a.role) for a in plan.axes if a.name != to), MeshAxis(to, count, to))
    machine = machine_of(attached(), plan.machine, count)
    alone = {"zero1": False, "zero2": False, "microbatches": 1, "schedule": "gpipe", "repeats": 1}
    return replace(plan, machine=machine, axes=axes, **alone)
