"""The schedules of a plan's pipeline side by side: what each waits for and holds. No JAX here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxplan.estimate.pipeline import bubble_fraction, in_flight
from jaxplan.estimate.single import estimate_plan
from jaxplan.plan.plan import Plan
from jaxplan.plan.schedule import SCHEDULES, reason
from jaxplan.search.meshes import divisors
from jaxplan.workload.table import Table

FEWEST_REPEATS = 2      # of a schedule that needs several


@dataclass(frozen=True)
class Order:
    """One schedule of the plan's stages and microbatches.

    Attributes:
        illegal: why it cannot be used; what follows is then nothing.
        bubble: the part of the step that a device waits, if forward, backward and weight gradients take equally long.
        in_flight: microbatches of one stage whose activations the first stage holds at once.
        step_s, total_bytes: of the plan with this schedule; bytes only where a device holds its own stage alone.
    """

    name: str
    repeats: int
    executable: bool
    chosen: bool
    illegal: str = ""
    bubble: float = 0.0
    in_flight: float = 0.0
    step_s: float = 0.0
    total_bytes: float | None = None


def orders(plan: Plan, table: Table) -> tuple[Order, ...]:
    """Every schedule that there is, with the fewest and the most repeats where it takes several."""
    if plan.stages == 1 or plan.workload.model is None:
        return ()
    layers = plan.workload.model.repeated_layers
    found = []
    for name, schedule in SCHEDULES.items():
        several = divisors(layers // plan.stages)[1:] or (FEWEST_REPEATS,)
        counts = {several[0], several[-1]} if schedule.needs_repeats else {1}
        counts |= {plan.repeats} if name == plan.schedule else set()
        found += [_order(plan, table, name, repeats, layers) for repeats in sorted(counts)]
    return tuple(found)


def _order(plan: Plan, table: Table, name: str, repeats: int, layers: int) -> Order:
    schedule = SCHEDULES[name]
    chosen = (name, repeats) == (plan.schedule, plan.repeats)
    counts = plan.stages, plan.microbatches, repeats
    if illegal := reason(name, *counts, layers):
        return Order(name, repeats, schedule.executable, chosen, illegal)
    ratio = float(bubble_fraction(name, *counts))
    estimate = estimate_plan(replace(plan, schedule=name, repeats=repeats), table)
    return Order(
        name,
        repeats,
        schedule.executable,
        chosen,
        bubble=ratio / (1 + ratio),
        in_flight=float(in_flight(name, *counts)),
        step_s=estimate.value_s,
        total_bytes=estimate.total_bytes if schedule.parameter_copies == 1 else None,
    )
