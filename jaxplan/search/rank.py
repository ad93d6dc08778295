"""The estimate of every candidate, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.ledger import Estimate, estimate_of
from jaxplan.estimate.network import Network
from jaxplan.estimate.step import Estimator
from jaxplan.estimate.terms import VARIABLES
from jaxplan.estimate.view import View
from jaxplan.machine.topology import Machine
from jaxplan.plan.remat import policy
from jaxplan.plan.sharding import AXES
from jaxplan.search.space import Space
from jaxplan.workload.cut import policy_cut
from jaxplan.workload.table import Table

#: An estimate counts as fitting with this much to spare: the most by which estimates fell short of the compilers in
#: profiling/calibrations/compiled_accuracy.json, rounded up. What the compiler said replaces it.
MEMORY_MARGIN = 0.08
AS_FAST = 1e-3      # relative difference of two estimated times that says nothing
TELLING = ("group", "expert")
AT_ONCE = 2**18     # plans whose variables are made at a time: tens of megabytes


@dataclass(frozen=True)
class Ranking:
    """Every candidate's estimated memory and time; row `i` is candidate `i` of the space."""

    space: Space
    machine: Machine
    estimators: tuple[Estimator, ...]
    priced_by: np.ndarray       # index into `estimators`
    network: Network
    total_bytes: np.ndarray
    low_s: np.ndarray
    value_s: np.ndarray
    high_s: np.ndarray

    @cached_property
    def placeable(self) -> np.ndarray:
        """Whether the mesh can be laid on the machine's physical axes."""
        return ~np.isin(self.space.mesh, list(self.network.illegal))

    @cached_property
    def fits(self) -> np.ndarray:
        return (self.total_bytes * (1 + MEMORY_MARGIN) <= self.machine.device_hbm_bytes) & self.placeable

    def order(
        self, score: np.ndarray | None = None, fits: np.ndarray | None = None, tolerance: float = AS_FAST
    ) -> np.ndarray:
        """Candidates that fit, smallest score (time) first.

        Args:
            tolerance: relative difference up to which scores are equal; then comes first what hides least, and then
                what needs least memory.
        """
        score = self.value_s if score is None else score
        rows = np.flatnonzero(self.fits if fits is None else fits)
        first = np.round(np.log(score[rows]) / tolerance) if tolerance else score[rows]
        return rows[np.lexsort((self.total_bytes[rows], self.high_s[rows], first))]

    def nearest_misses(self, count: int) -> np.ndarray:
        """Candidates that do not fit, smallest memory first."""
        rows = np.flatnonzero(self.placeable)
        return rows[np.argsort(self.total_bytes[rows], kind="stable")][:count]

    def estimate(self, row: int) -> Estimate:
        """The whole ledger of one candidate."""
        space, which = self.space, np.array([row])
        estimator = self.estimators[int(self.priced_by[row])]
        variables = space.variables(which)
        found = estimator.evaluate(variables, space.mesh[which], self.network)
        bubble = float(variables[0, VARIABLES.index("bubble")])
        return estimate_of(found, 0, space.meshes[space.mesh[row]], bubble)


def rank(space: Space, table: Table, machine: Machine) -> Ranking:
    """Prices the whole space: one estimator for each pair of rules and rematerialization policy.

    Raises:
        InputError: the catalogue has no matmul rate of the chip for the program's dtype.
    """
    dtype = space.workload.matmul_dtype or table.compute_dtype
    try:
        machine.device_flops_per_s(dtype)
    except ValueError as error:
        suggestion = f"a file of your own with matmul_flops_per_s.{dtype}, or matmuls of another dtype"
        raise InputError(f"{table.name}: {error}", suggestion=suggestion) from error
    network = Network(machine, space.meshes)
    found = np.full((len(space), 4), np.inf)
    estimators, priced_by = _estimators(space, table, machine)
    for i, estimator in enumerate(estimators):
        rows = np.flatnonzero(priced_by == i)
        for part in np.array_split(rows, -(-len(rows) // AT_ONCE)):
            found[part] = estimator.totals(space.variables(part), space.mesh[part], network)
    return Ranking(space, machine, estimators, priced_by, network, *found.T)


def _estimators(space: Space, table: Table, machine: Machine) -> tuple[tuple[Estimator, ...], np.ndarray]:
    """The estimators that a space needs, and which of them prices each candidate.

    Rule sets that lay out alike share one: their variables tell them apart. Plans without some of the axes `TELLING`
    have their own: gradients of one activation are added up before they are reduced if they are partial sums over the
    same axes, and over these axes some are and some are not.
    """
    work, made, views = space.workload, {}, {}
    cuts = [policy_cut(table, policy(name)) for name in space.policies]
    has = sum((space.size_of(axis) > 1).astype(np.int64) << i for i, axis in enumerate(TELLING))
    keys, inverse = np.unique(np.column_stack([space.rules, space.policy, has]), axis=0, return_inverse=True)
    places = []
    for rule_set, cut, bits in keys.tolist():
        missing = {axis for i, axis in enumerate(TELLING) if not bits >> i & 1}
        rules = space.rule_sets[rule_set].rules(work).on(axis for axis in AXES if axis not in missing)
        layout = str(rules.to_json())
        views.setdefault(layout, View(table, rules, cuts[cut], work.model is not None))
        if (layout, cut) not in made:
            view = views[layout].under(cuts[cut])
            made[layout, cut] = len(made), Estimator(view, machine, work.busiest_share, work.matmul_dtype)
        places.append(made[layout, cut][0])
    return tuple(estimator for _, estimator in made.values()), np.array(places)[inverse.reshape(-1)]
