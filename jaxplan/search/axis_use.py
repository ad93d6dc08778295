"""What each mesh axis of a plan does: what it shards and moves, over which links, and what other links would cost.

An axis is worth what its collectives would take elsewhere: `Trade` prices the whole step with two axes in each other's
place. No JAX here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.communication import Traffic
from jaxplan.estimate.network import Network, Prices
from jaxplan.estimate.step import Estimates, Estimator
from jaxplan.machine.links import Links
from jaxplan.machine.placement import Placement
from jaxplan.plan.plan import Plan
from jaxplan.plan.sharding import AXES, Rules
from jaxplan.workload.table import Leaf


@dataclass(frozen=True)
class Moved:
    """One kind of collective over one set of mesh axes: of one step on one device.

    Attributes:
        axes: none where it moves between a device and its host's memory.
        what: `weights`, `gradients`, `keys and values`, `activations`, `optimizer's state`.
        exposed_s: what of `seconds` the device waits for; adds up with the others' to the ledger's exposed entries.
    """

    kind: str
    axes: tuple[str, ...]
    what: str
    nbytes: float
    executions: float
    seconds: float
    exposed_s: float


@dataclass(frozen=True)
class Shards:
    """What an axis shards: dims by name, the largest first, and the parts of the bytes that it divides."""

    weights: tuple[str, ...]
    weights_share: float
    optimizer: tuple[str, ...]
    optimizer_share: float
    activations: tuple[str, ...]


@dataclass(frozen=True)
class Trade:
    """An axis in the place of another one, and that one in its place.

    Attributes:
        own_s: what the axis's own collectives take there.
        step_s: what the step takes.
    """

    other: str
    links: Links
    own_s: float
    step_s: float


@dataclass(frozen=True)
class AxisUse:
    """One mesh axis larger than 1.

    Attributes:
        own_s: of all its collectives, hidden or not.
        trades: with every other axis.
    """

    name: str
    role: str
    size: int
    links: Links
    shards: Shards
    moved: tuple[Moved, ...]
    own_s: float
    trades: tuple[Trade, ...]


def large_axes(plan: Plan) -> list[str]:
    """The axes larger than 1, outermost first."""
    return [axis.name for axis in plan.axes if axis.size > 1]


def moved_by(found: Estimates, variables: np.ndarray, plan: Plan) -> tuple[Moved, ...]:
    """The collectives that move something, the longest first."""
    hidden = np.array([entry.prefetchable for entry in found.collectives], dtype=bool)
    hideable, busy = float(found.collective_s[0, hidden].sum()), float(found.busy_s[0])
    exposed = float(found.waited_s(hideable, busy)) / hideable if hideable else 0.0
    large = large_axes(plan)
    sums: dict[tuple[str, tuple[str, ...], str], np.ndarray] = defaultdict(lambda: np.zeros(4))
    for i, entry in enumerate(found.collectives):
        nbytes, seconds = float(found.collective_bytes[0, i]), float(found.collective_s[0, i])
        if not nbytes:
            continue
        axes = tuple(axis for axis in entry.axes if axis in large)
        count = float(entry.executions.at(variables)[0])
        waited = seconds * (exposed if entry.prefetchable else 1.0)
        sums[entry.kind, axes, _what(entry)] += np.array([nbytes, count, seconds, waited])
    lines = [Moved(*key, *map(float, costs)) for key, costs in sums.items()]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _what(entry: Traffic) -> str:
    if not entry.axes:      # between a device and its host's memory
        return "activations" if entry.prefetchable else "optimizer's state"
    if not entry.prefetchable:
        return "activations"
    if entry.kind == "collective-permute":
        return "keys and values"        # `estimate.exchange`: the ring of attention
    return "weights" if entry.kind in ("all-gather", "all-to-all") else "gradients"


def axis_use(
    axis: str, plan: Plan, estimator: Estimator, variables: np.ndarray, network: Network, moved: Sequence[Moved]
) -> AxisUse:
    """One axis of a plan whose mesh can be laid on the machine.

    Args:
        estimator, variables: of the plan (`estimate.single.prepared`). network: of its mesh alone. moved: by all axes.
    """
    mine = tuple(line for line in moved if axis in line.axes)
    others = [other for other in large_axes(plan) if other != axis]
    return AxisUse(
        name=axis,
        role=plan.roles[axis],
        size=plan.size(axis),
        links=_placed(network).links(axis),
        shards=_shards(axis, plan.rules, estimator),
        moved=mine,
        own_s=math.fsum(line.seconds for line in mine),
        trades=tuple(_trade(axis, other, plan, estimator, variables) for other in others),
    )


def _placed(network: Network) -> Placement:
    """The placement of a network's only mesh."""
    placement = network.placements[0]
    if placement is None:
        raise ValueError(network.illegal[0])
    return placement


def _shards(axis: str, rules: Rules, estimator: Estimator) -> Shards:
    view, table = estimator.view, estimator.view.table

    def stored(under: Rules, leaves: Sequence[Leaf]) -> tuple[tuple[str, ...], float]:
        sizes: dict[str, float] = defaultdict(float)
        every = 0.0
        for leaf in leaves:
            nbytes = table.elements(leaf.dims) * leaf.itemsize
            names = [view.names[d] for d in leaf.dims]
            owners = under.owners(names, (axis,))
            every += nbytes
            if axis in owners:
                sizes[names[owners[axis]]] += nbytes
        return _largest(sizes), sum(sizes.values()) / every if every else 0.0

    activations: dict[str, float] = defaultdict(float)
    for i, value in enumerate(table.values):
        if value.kind == "intermediate" and view.has_batch(value.dims):
            dim = view.owners(value.dims, i in view.inside).get(axis)
            if dim is not None:
                activations[view.names[dim]] += table.nbytes(i) * value.copies
    weights = stored(rules.storage, table.parameters)
    optimizer = stored(rules.storage_of_optimizer, table.optimizer)
    return Shards(*weights, *optimizer, _largest(activations))


def _largest(sizes: dict[str, float]) -> tuple[str, ...]:
    return tuple(sorted(sizes, key=lambda name: -sizes[name]))


class _Traded(Network):
    """The network of a mesh two of whose axes have traded places: each gets the links that the other would get."""

    def __init__(self, plan: Plan, one: str, other: str) -> None:
        self.names = {one: other, other: one}
        super().__init__(plan.machine, [tuple(plan.size(self.names.get(axis, axis)) for axis in AXES)])

    def prices(self, collectives: Sequence[tuple[str, tuple[str, ...]]]) -> Prices:
        return super().prices([(kind, tuple(self.names.get(a, a) for a in axes)) for kind, axes in collectives])


def _trade(axis: str, other: str, plan: Plan, estimator: Estimator, variables: np.ndarray) -> Trade:
    """The axis where the other one lies. Any mesh's sizes, in another order, can be laid on the machine as well."""
    network = _Traded(plan, axis, other)
    found = estimator.evaluate(variables, np.array([0]), network)
    own = [i for i, entry in enumerate(estimator.collectives) if axis in entry.axes]
    return Trade(other, _placed(network).links(other), float(found.collective_s[0, own].sum()), float(found.value_s[0]))
