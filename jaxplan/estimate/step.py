"""The estimate of one training step: memory and time ledgers of many plans at once.

An `Estimator` is prepared once for a table, a set of rules and a rematerialization (milliseconds); `evaluate` then
prices any number of plans by one matrix product.

Time has three values. `low`: everything that moves is hidden under what computes (the longer of the two), which runs at
its peak. `high`: nothing is hidden, matmuls run at the rate that was measured. `value`: state that can be prefetched (weights, gradients) is hidden as far as compute lasts, activations
that the next matmul waits for are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.communication import Traffic, traffic
from jaxplan.estimate.compute import Work, work
from jaxplan.estimate.memory import memory
from jaxplan.estimate.network import Network
from jaxplan.estimate.terms import TermMatrix
from jaxplan.estimate.view import View
from jaxplan.machine.topology import Machine

CHUNK = 8192    # plans priced at a time: the monomials of this many stay in the processor's cache


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

    @property
    def total_bytes(self) -> np.ndarray:
        return self.memory_bytes.sum(axis=1)

    @property
    def busy_s(self) -> np.ndarray:
        """Time that the device computes."""
        return self.compute_s.sum(axis=1)

    @property
    def prefetchable_s(self) -> np.ndarray:
        """Communication of state, which can run while the device computes."""
        return self._communication(True)

    @property
    def blocking_s(self) -> np.ndarray:
        """Communication of activations, for which the next matmul waits."""
        return self._communication(False)

    def _communication(self, prefetchable: bool) -> np.ndarray:
        columns = [i for i, c in enumerate(self.collectives) if c.prefetchable == prefetchable]
        return self.collective_s[:, columns].sum(axis=1)

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
    """One table under one view, ready for many plans on one machine."""

    def __init__(self, view: View, machine: Machine) -> None:
        self.view, self.machine = view, machine
        ledger = memory(view)
        self.works, self.collectives = work(view), traffic(view)
        self.moments = tuple(moment.name for moment in ledger.moments)
        state = [ledger.params, ledger.optimizer, ledger.batch]
        moments = [part for m in ledger.moments for part in (m.gradients, m.activations, m.workspace)]
        works = [cost for entry in self.works for cost in (entry.flops, entry.nbytes)]
        moved = [cost for entry in self.collectives for cost in (entry.nbytes, entry.executions)]
        self._matrix = TermMatrix.of([*state, *moments, *works, *moved])

    def evaluate(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> Estimates:
        """Prices plans.

        Args:
            variables: float [plans, variables], `estimate.terms.VARIABLES` of each plan.
            mesh: int [plans], the row of `network` that holds each plan's links.
            network: the links of every set of mesh axes on every distinct mesh.
        """
        parts = [
            self._evaluate(variables[i : i + CHUNK], mesh[i : i + CHUNK], network)
            for i in range(0, max(1, len(variables)), CHUNK)
        ]
        arrays = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        return Estimates(self.works, self.collectives, self.moments, *arrays)

    def _evaluate(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> Sequence[np.ndarray]:
        costs = self._matrix.evaluate(variables)
        bounds = np.cumsum([3, 3 * len(self.moments), 2 * len(self.works)])
        state, moments, works, moved = np.split(costs, bounds, axis=1)
        moments = moments.reshape(len(costs), -1, 3)
        largest = moments.sum(axis=2).argmax(axis=1)
        memory_bytes = np.concatenate([state, moments[np.arange(len(costs)), largest]], axis=1)
        flops, nbytes = works[:, 0::2], works[:, 1::2]
        peak, hbm = self._peaks(), self.machine.device_hbm_bytes_per_s
        ideal_s = np.maximum(flops / peak, nbytes / hbm)
        compute_s = np.maximum(flops / (peak * matmul_fraction(self.machine)), nbytes / hbm)
        collective_bytes, executions = moved[:, 0::2].copy(), moved[:, 1::2]
        collective_s, ideal_collective_s = np.empty_like(collective_bytes), np.empty_like(collective_bytes)
        for i, entry in enumerate(self.collectives):
            price = network.price(entry.kind, entry.axes, mesh)
            started = price.start_s * executions[:, i]
            collective_bytes[:, i] *= price.moves
            collective_s[:, i] = started + price.byte_s * collective_bytes[:, i]
            ideal_collective_s[:, i] = started + price.ideal_byte_s * collective_bytes[:, i]
        return (
            memory_bytes,
            largest,
            ideal_s,
            compute_s,
            flops,
            ideal_collective_s,
            collective_s,
            collective_bytes,
        )

    def _peaks(self) -> np.ndarray:
        """The peak rate that bounds each entry's FLOPs: the matrix units for matmuls, none for memory-bound passes."""
        peak = self.machine.device_flops_per_s(self.view.table.compute_dtype)
        return np.array([peak if entry.kind in ("matmul", "attention") else np.inf for entry in self.works])


def matmul_fraction(machine: Machine) -> float:
    """The part of the peak that large matmuls reached when somebody measured this chip; 1 where nobody has."""
    return machine.chip.measured.get("matmul_fraction", 1.0)
