"""The estimate of one training step: memory and time ledgers of many plans at once.

An `Estimator` is prepared once for a table, a set of rules and a rematerialization (milliseconds); `evaluate` then
prices any number of plans by one matrix product.

Time has three values. `low`: everything that moves is hidden under what computes (the longer of the two), which runs at
its peak. `high`: nothing is hidden, matmuls run at the rate that was measured. `value`: state that can be prefetched
(weights, gradients) is hidden as far as compute lasts, activations that the next matmul waits for are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxplan.estimate.communication import Traffic, traffic
from jaxplan.estimate.compute import Work, work
from jaxplan.estimate.memory import memory
from jaxplan.estimate.network import Network, Prices
from jaxplan.estimate.scheduler import SCHEDULERS
from jaxplan.estimate.terms import VARIABLES, TermMatrix
from jaxplan.estimate.view import View
from jaxplan.machine.topology import Machine

CHUNK = 4096    # plans priced at a time: the monomials of this many stay in the processor's cache


@dataclass(frozen=True)
class Estimates:
    """The ledgers of many plans; every array has one row a plan.

    Attributes:
        memory_bytes: float [plans, parts], the parts of `estimate.memory.PARTS` at the largest moment.
        moment: index into `moments` of the largest moment.
        ideal_s: float [plans, works]: time of each entry of `works` by its roofline, at the data sheet's peak.
        compute_s: the same at the matmul rate that was measured on the chip (`matmul_fraction`).
        collective_s: float [plans, collectives]: time of each entry of `collectives` at the rates that measurements
            of such links reached; `ideal_collective_s` at the data sheet's.
        collective_bytes: float [plans, collectives].
    """

    works: tuple[Work, ...]
    collectives: tuple[Traffic, ...]
    moments: tuple[str, ...]
    memory_bytes: np.ndarray
    moment: np.ndarray
    ideal_s: np.ndarray
    compute_s: np.ndarray
    flops: np.ndarray
    ideal_collective_s: np.ndarray
    collective_s: np.ndarray
    collective_bytes: np.ndarray

    @cached_property
    def total_bytes(self) -> np.ndarray:
        return self.memory_bytes.sum(axis=1)

    @cached_property
    def busy_s(self) -> np.ndarray:
        """Time that the device computes."""
        return self.compute_s.sum(axis=1)

    @cached_property
    def prefetchable_s(self) -> np.ndarray:
        """Communication of state, which can run while the device computes."""
        return self.collective_s @ np.array([float(entry.prefetchable) for entry in self.collectives])

    @cached_property
    def blocking_s(self) -> np.ndarray:
        """Communication of activations, for which the next matmul waits."""
        return self.collective_s @ np.array([float(not entry.prefetchable) for entry in self.collectives])

    @property
    def low_s(self) -> np.ndarray:
        return np.maximum(self.ideal_s.sum(axis=1), self.ideal_collective_s.sum(axis=1))

    @property
    def high_s(self) -> np.ndarray:
        return self.busy_s + self.prefetchable_s + self.blocking_s

    @property
    def value_s(self) -> np.ndarray:
        return np.maximum(self.busy_s, self.prefetchable_s) + self.blocking_s


class Estimator:
    """One table under one view, ready for many plans on one machine.

    Args:
        hot_expert_factor: how many times its even share of the tokens the device with the busiest experts gets.
    """

    def __init__(self, view: View, machine: Machine, hot_expert_factor: float = 1.0) -> None:
        self.view, self.machine, self.hot = view, machine, hot_expert_factor
        ledger = memory(view, SCHEDULERS[machine.platform])
        self.works, self.collectives = work(view), traffic(view)
        self.moments = tuple(moment.name for moment in ledger.moments)
        state = [ledger.params, ledger.optimizer, ledger.batch]
        moments = [part for m in ledger.moments for part in (m.gradients, m.activations, m.workspace)]
        works = [cost for entry in self.works for cost in (entry.flops, entry.nbytes)]
        moved = [cost for entry in self.collectives for cost in (entry.nbytes, entry.executions)]
        self._priced: tuple[Network, Prices] | None = None
        self._matrix = TermMatrix.of([*state, *moments, *works, *moved])

    def evaluate(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> Estimates:
        """The whole ledgers of plans.

        Args:
            variables: float [plans, variables], `estimate.terms.VARIABLES` of each plan.
            mesh: int [plans], the row of `network` that holds each plan's links.
            network: the links of every set of mesh axes on every distinct mesh.
        """
        costs = self._matrix.evaluate(variables)
        bounds = np.cumsum([3, 3 * len(self.moments), 2 * len(self.works)])
        state, moments, works, moved = np.split(costs, bounds, axis=1)
        moments = moments.reshape(len(costs), -1, 3)
        largest = moments.sum(axis=2).argmax(axis=1)
        flops, nbytes = works[:, 0::2], works[:, 1::2]
        hot, hot_exchange = self._hot(variables)
        hbm_s = hot * nbytes / self.machine.device_hbm_bytes_per_s
        peak_s = hot * flops / self._peaks
        prices = self._prices(network)
        collective_bytes = moved[:, 0::2] * prices.moves[mesh]
        started_s = moved[:, 1::2] * prices.start_s[mesh]
        return Estimates(
            works=self.works,
            collectives=self.collectives,
            moments=self.moments,
            memory_bytes=np.concatenate([state, moments[np.arange(len(costs)), largest]], axis=1),
            moment=largest,
            ideal_s=np.maximum(peak_s, hbm_s),
            compute_s=np.maximum(peak_s / matmul_fraction(self.machine), hbm_s),
            flops=flops,
            ideal_collective_s=started_s + hot_exchange * collective_bytes * prices.ideal_byte_s[mesh],
            collective_s=started_s + hot_exchange * collective_bytes * prices.byte_s[mesh],
            collective_bytes=collective_bytes,
        )

    def totals(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> np.ndarray:
        """Memory, low, value and high of plans, float [plans, 4], a cacheful of plans at a time."""
        out = np.empty((len(variables), 4))
        for i in range(0, len(variables), CHUNK):
            found = self.evaluate(variables[i : i + CHUNK], mesh[i : i + CHUNK], network)
            out[i : i + CHUNK] = np.column_stack([found.total_bytes, found.low_s, found.value_s, found.high_s])
        return out

    def _prices(self, network: Network) -> Prices:
        if self._priced is None or self._priced[0] is not network:
            self._priced = network, network.prices([(entry.kind, entry.axes) for entry in self.collectives])
        return self._priced[1]

    def _hot(self, variables: np.ndarray) -> tuple[np.ndarray | float, np.ndarray | float]:
        """How many times longer than on average each work and each collective takes on the busiest device."""
        if self.hot == 1:
            return 1.0, 1.0
        shared = variables[:, [VARIABLES.index("expert")]] > 1
        works = np.array([entry.of_experts for entry in self.works])
        moved = np.array([entry.kind == "all-to-all" and "expert" in entry.axes for entry in self.collectives])
        return np.where(shared & works, self.hot, 1.0), np.where(shared & moved, self.hot, 1.0)

    @cached_property
    def _peaks(self) -> np.ndarray:
        """The peak rate that bounds each entry's FLOPs: the matrix units for matmuls, none for memory-bound passes."""
        peak = self.machine.device_flops_per_s(self.view.table.compute_dtype)
        return np.array([peak if entry.kind in ("matmul", "attention") else np.inf for entry in self.works])


def matmul_fraction(machine: Machine) -> float:
    """The part of the peak that large matmuls reached when somebody measured this chip; 1 where nobody has."""
    return machine.chip.measured.get("matmul_fraction", 1.0)
