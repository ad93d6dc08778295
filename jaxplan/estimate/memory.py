"""The memory ledger of one device, in term form: state exactly, activations by the cut, workspace by liveness.

The total is the largest over a few moments of the step (forward, loss, backward, update) of the sum of what is then
alive; the ledger is that moment's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.estimate.communication import ADDED_UP_BYTES
from jaxplan.estimate.exchange import pipelined_rows
from jaxplan.estimate.liveness import Point, working_sets
from jaxplan.estimate.scheduler import Scheduler
from jaxplan.estimate.terms import Terms, total, unless
from jaxplan.estimate.view import Executed, View, once
from jaxplan.plan.sharding import STORED_DIMS
from jaxplan.workload.cut import LAYERS
from jaxplan.workload.table import Leaf

PARTS = ("params", "optimizer", "batch", "gradients", "activations", "workspace")


@dataclass(frozen=True)
class Moment:
    """One moment of the step: what of each kind is alive on a device."""

    name: str
    gradients: Terms
    activations: Terms
    workspace: Terms


@dataclass(frozen=True)
class Memory:
    """State that always exists, and the moments whose largest decides the total."""

    params: Terms
    optimizer: Terms
    batch: Terms
    moments: tuple[Moment, ...]


def memory(view: View, scheduler: Scheduler) -> Memory:
    """The memory of every plan under the view's rules and cut, with the target compiler's habits."""
    return Memory(
        params=view.parameter_bytes,
        optimizer=unless("offloaded", view.optimizer_bytes),
        batch=view.leaf_bytes(view.rules.input, view.table.batch),
        moments=_moments(view, scheduler),
    )


def _moments(view: View, scheduler: Scheduler) -> tuple[Moment, ...]:
    """Forward, loss, backward and update, each with the largest working sets of its operations."""
    table = view.table
    gradients = view.gradient_bytes
    stacks = tuple(leaf for leaf in table.parameters if any(table.dims[d].name == LAYERS for d in leaf.dims))
    of_layers = view.leaf_bytes(view.rules.storage_of_gradients, stacks)
    accumulators = gradients.times(accumulating=1)
    on_device = view.cut.on_device
    stacked = total([view.stacked(v) for v in on_device if table.values[v].copies > 1])
    saved = stacked + total([view.live(v) for v in on_device if table.values[v].copies == 1])
    group = total([view.live(v) for v in view.cut.inside]) * view.cut.group + _group_of_weights(view, stacks)
    resident = frozenset(
        {i for i, value in enumerate(table.values) if value.kind == "parameter"} | {*on_device, *view.cut.inside}
    )
    casts = unless("pipelining", _cast_weights(view)) if scheduler.hoists_casts else Terms()
    held, rows = _stage_weights(view), pipelined_rows(view)
    compute_bytes = min((table.values[value].itemsize for value in _casts(view)), default=ADDED_UP_BYTES)
    moments = []
    for name, runs, grads, kept in (
        ("forward", _between(view, "forward", INSIDE), accumulators, saved),
        ("loss", _between(view, "backward", BEFORE), accumulators, saved),
        ("backward", _between(view, "backward", INSIDE), gradients + accumulators, stacked + group),
        ("embedding", _between(view, "backward", AFTER), gradients + accumulators, Terms()),
    ):
        stage = held
        if name == "backward":
            # a stage adds up the gradients of its gathered weights in float32, and scatters them afterwards
            wide = ADDED_UP_BYTES / compute_bytes
            stage, grads = held * (1 + wide), grads + of_layers.times(pipelining=1) * -1.0
        for point in _largest(working_sets(view, runs, resident, scheduler)):
            moments.append(Moment(f"{name}: {point.name}", grads, kept, point.alive + casts + stage + rows))
    moments.append(Moment("update", gradients, Terms(), _update(view)))
    return tuple(moments)


def _update(view: View) -> Terms:
    """What the update brings together: an optimizer's state that the host has, and changes on their way to replicas.

    Under ZeRO-1 a replica computes its part of the changes; all of them are gathered before any is applied.
    """
    changes = view.parameter_bytes if view.rules.optimizer else Terms()
    return view.optimizer_bytes.times(offloaded=1) + changes


def _group_of_weights(view: View, stacks: tuple[Leaf, ...]) -> Terms:
    """A group's weights, cut from their stacks, and their gradients on the way there; none where layers are alone."""
    layers = {view.table.dims[d].size for leaf in stacks for d in leaf.dims if view.names[d] == LAYERS}
    if view.cut.group == 1 or not layers:
        return Terms()
    both = view.leaf_bytes(view.rules.storage, stacks) + view.leaf_bytes(view.rules.storage_of_gradients, stacks)
    return both.times(stage=1) * (view.cut.group / max(layers))


def _cast_weights(view: View) -> Terms:
    """The sharded copies of all weights in the dtype that they are cast to before they are gathered."""
    return total([view.live(value) * view.table.values[value].copies for value in _casts(view)])


def _stage_weights(view: View) -> Terms:
    """The whole weights of a stage's layers in the compute dtype: gathered once a step, kept until its end."""
    copies = []
    for value in _casts(view):
        if value in view.inside:
            owners = view.owners(view.table.values[value].dims, True)
            scattered = [axis for axis, dim in owners.items() if view.names[dim] in STORED_DIMS]
            whole = view.live(value, without=scattered) * view.table.values[value].copies
            copies.append(whole.times(stage=-1, pipelining=1))
    return total(copies)


@once
def _casts(view: View) -> list[int]:
    """The weights as they are computed with: cast to the compute dtype."""
    values = view.table.values
    return [
        run.operation.writes[0]
        for run in view.executed
        if run.phase == "forward"
        and run.operation.primitive == "convert_element_type"
        and values[run.operation.reads[0].value].path
    ]


BEFORE, INSIDE, AFTER = "before", "inside", "after"


def _between(view: View, phase: str, where: str) -> list[Executed]:
    """The operations of a phase before, inside or after the loop over layers."""
    runs = [run for run in view.executed if run.phase == phase]
    inside = [i for i, run in enumerate(runs) if "layers" in run.operation.scope and not run.recomputed]
    first, last = (inside[0], inside[-1]) if inside else (len(runs), len(runs))
    places = {BEFORE: lambda i: i < first, INSIDE: lambda i: False, AFTER: lambda i: i > last}
    return [
        run
        for i, run in enumerate(runs)
        if (where == INSIDE if "layers" in run.operation.scope else places[where](i))
    ]


def _largest(points: Sequence[Point]) -> list[Point]:
    """The points that can be largest for some plan: those of which no other has every term at least as large."""
    kept: list[Point] = []
    for point in points:
        if any(_covers(other, point) for other in kept):
            continue
        kept = [other for other in kept if not _covers(point, other)] + [point]
    return kept or [Point("nothing")]


def _covers(larger: Point, smaller: Point) -> bool:
    of = larger.alive.coefficients
    return all(coefficient <= of.get(powers, 0.0) for powers, coefficient in smaller.alive.coefficients.items())
