"""The estimate of one training step: memory and time ledgers of many plans at once.

An `Estimator` is prepared once for a table, a set of rules and a rematerialization (milliseconds); `evaluate` then
prices any number of plans by one matrix product.

Time has three values. `low`: everything that moves is hidden under what computes (the longer of the two), which runs at
its peak. `high`: nothing is hidden, what computes runs at the rates that training steps reach (`machine.reached`).
`value`: of state that can be prefetched (weights, gradients) a calibrated share of what compute could hide is hidden
(`waited_s`), activations that the next matmul waits for are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from jaxplan.estimate.communication import Traffic, traffic
from jaxplan.estimate.compute import Work, work
from jaxplan.estimate.memory import memory
from jaxplan.estimate.network import Network, Prices
from jaxplan.estimate.scheduler import SCHEDULERS
from jaxplan.estimate.terms import VARIABLES, TermMatrix, total
from jaxplan.estimate.view import View
from jaxplan.machine.reached import attention_fraction, hidden_share, memory_fraction, sustained_fraction
from jaxplan.machine.topology import Machine

CHUNK = 4096    # plans priced at a time: the monomials of this many stay in the processor's cache


@dataclass(frozen=True)
class Estimates:
    """The ledgers of many plans; every array has one row a plan.

    Attributes:
        memory_bytes: float [plans, parts], the parts of `estimate.memory.PARTS` at the largest moment.
        moment: index into `moments` of the largest moment.
        ideal_s: float [plans, works]: time of each entry of `works` by its roofline, at the data sheet's peak.
        compute_s: the same at the rates that training steps reach (`machine.reached`).
        collective_s: float [plans, collectives]: time of each entry of `collectives` at the rates that measurements
            of such links reached; `ideal_collective_s` at the data sheet's.
        collective_bytes: float [plans, collectives].
        hidden_share: of what could hide under compute, the part that does (`machine.reached`).
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
    hidden_share: float

    @cached_property
    def total_bytes(self) -> np.ndarray:
        return self.memory_bytes.sum(axis=1)

    @cached_property
    def busy_s(self) -> np.ndarray:
        """Time that the device computes."""
        return self.compute_s.sum(axis=1)

    @cached_property
    def _step_s(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ideal_s, moved_s = self.ideal_s.sum(axis=1), (self.ideal_collective_s, self.collective_s)
        return step_s(ideal_s, self.busy_s, *moved_s, prefetchable(self.collectives), self.hidden_share)

    def waited_s(self, hideable_s: ArrayLike, busy_s: ArrayLike) -> np.ndarray:
        """What a device waits for communication that could run while it computes."""
        return waited_s(hideable_s, busy_s, self.hidden_share)

    @property
    def low_s(self) -> np.ndarray:
        return self._step_s[0]

    @property
    def value_s(self) -> np.ndarray:
        return self._step_s[1]

    @property
    def high_s(self) -> np.ndarray:
        return self._step_s[2]


def prefetchable(collectives: Sequence[Traffic]) -> np.ndarray:
    """[collectives], 1 for communication of state, which can run while the device computes, 0 for the rest."""
    return np.array([float(entry.prefetchable) for entry in collectives])


def step_s(
    ideal_s: np.ndarray,
    busy_s: np.ndarray,
    ideal_collective_s: np.ndarray,
    collective_s: np.ndarray,
    hideable: np.ndarray,
    hidden_share: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Low, value and high of plans' steps.

    Args:
        ideal_s, busy_s: [plans], time that the device computes: at its peak, and at the rate that was measured.
        ideal_collective_s, collective_s: [plans, collectives].
        hideable: [collectives], as `prefetchable` says: what is not is waited for by the next matmul.
        hidden_share: of what could hide, the part that does.
    """
    hidden_s, blocking_s = collective_s @ hideable, collective_s @ (1 - hideable)
    low_s = np.maximum(ideal_s, ideal_collective_s.sum(axis=1))
    return low_s, busy_s + waited_s(hidden_s, busy_s, hidden_share) + blocking_s, busy_s + hidden_s + blocking_s


def waited_s(hideable_s: ArrayLike, busy_s: ArrayLike, hidden_share: float) -> np.ndarray:
    """What a device waits for communication that could run while it computes: all but a share of what fits."""
    return np.asarray(hideable_s, dtype=float) - hidden_share * np.minimum(hideable_s, busy_s)


class Estimator:
    """One table under one view, ready for many plans on one machine.

    Args:
        busiest_share: the tokens of the device with the busiest experts over the even share (`Workload.busiest_share`).
        matmul_dtype: of the operands of the layers' matmuls, if it is not that which the table has.
    """

    def __init__(
        self, view: View, machine: Machine, busiest_share: float = 1.0, matmul_dtype: str = ""
    ) -> None:
        self.view, self.machine, self.hot = view, machine, busiest_share
        self.matmul_dtype = matmul_dtype or view.table.compute_dtype
        ledger = memory(view, SCHEDULERS[machine.platform])
        self.works, self.collectives = work(view), traffic(view)
        self.moments = tuple(moment.name for moment in ledger.moments)
        state = [ledger.params, ledger.optimizer, ledger.batch]
        moments = [part for m in ledger.moments for part in (m.gradients, m.activations, m.workspace)]
        whole = [total([*state, m.gradients, m.activations, m.workspace]) for m in ledger.moments]
        spent = [
            *(entry.flops for entry in self.works),
            *(entry.nbytes for entry in self.works),
            *(entry.nbytes for entry in self.collectives),
            *(entry.executions for entry in self.collectives),
        ]
        self._priced: tuple[Network, Prices] | None = None
        self._ledger, self._totals = TermMatrix.of([*spent, *state, *moments]), TermMatrix.of([*spent, *whole])

    def evaluate(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> Estimates:
        """The whole ledgers of plans.

        Args:
            variables: float [plans, variables], `estimate.terms.VARIABLES` of each plan.
            mesh: int [plans], the row of `network` that holds each plan's links.
            network: the links of every set of mesh axes on every distinct mesh.
        """
        spent, held = self._split(self._ledger.evaluate(variables))
        state, moments = held[:, :3], held[:, 3:].reshape(len(held), -1, 3)
        largest = moments.sum(axis=2).argmax(axis=1)
        ideal_s, compute_s = self._work_s(spent, variables)
        ideal_collective_s, collective_s = self._collective_s(spent, variables, mesh, network)
        return Estimates(
            works=self.works,
            collectives=self.collectives,
            moments=self.moments,
            memory_bytes=np.concatenate([state, moments[np.arange(len(held)), largest]], axis=1),
            moment=largest,
            ideal_s=ideal_s,
            compute_s=compute_s,
            flops=spent[0],
            ideal_collective_s=ideal_collective_s,
            collective_s=collective_s,
            collective_bytes=spent[2] * self._prices(network).moves[mesh],
            hidden_share=hidden_share(self.machine),
        )

    def totals(self, variables: np.ndarray, mesh: np.ndarray, network: Network) -> np.ndarray:
        """Memory, low, value and high of plans, float [plans, 4], a cacheful of plans at a time."""
        out = np.empty((len(variables), 4))
        for i in range(0, len(variables), CHUNK):
            some, on = variables[i : i + CHUNK], mesh[i : i + CHUNK]
            spent, held = self._split(self._totals.evaluate(some))
            ideal_s, busy_s = (each.sum(axis=1) for each in self._work_s(spent, some))
            ideal_moved_s, moved_s = self._collective_s(spent, some, on, network)
            out[i : i + CHUNK, 0] = held.max(axis=1)
            hideable, share = prefetchable(self.collectives), hidden_share(self.machine)
            times = step_s(ideal_s, busy_s, ideal_moved_s, moved_s, hideable, share)
            out[i : i + CHUNK, 1:] = np.column_stack(times)
        return out

    def _split(self, costs: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """(FLOPs and bytes of works, bytes and executions of collectives), and the memory."""
        works, collectives = len(self.works), len(self.collectives)
        *spent, held = np.split(costs, np.cumsum([works, works, collectives, collectives]), axis=1)
        return spent, held

    def _work_s(self, spent: list[np.ndarray], variables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of every work by its roofline: at the data sheet's rates, and at those that steps reach."""
        hbm_s = spent[1] / self.machine.device_hbm_bytes_per_s
        peak_s = spent[0] / self._peaks
        if (hot := self._hot(variables, [entry.of_experts for entry in self.works])) is not None:
            hbm_s, peak_s = hot * hbm_s, hot * peak_s
        return np.maximum(peak_s, hbm_s), np.maximum(peak_s / self._fractions, hbm_s / memory_fraction(self.machine))

    def _collective_s(
        self, spent: list[np.ndarray], variables: np.ndarray, mesh: np.ndarray, network: Network
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of every collective: at the data sheet's rates, and at those that were measured."""
        prices, nbytes = self._prices(network), spent[2]
        exchanged = [entry.kind == "all-to-all" and "expert" in entry.axes for entry in self.collectives]
        if (hot := self._hot(variables, exchanged)) is not None:
            nbytes = hot * nbytes
        started_s, moved_s = spent[3] * prices.start_s[mesh], nbytes * prices.byte_s[mesh]
        moved_s += np.minimum(moved_s, spent[3] * prices.again_s[mesh])
        return started_s + nbytes * prices.ideal_byte_s[mesh], started_s + moved_s

    def _prices(self, network: Network) -> Prices:
        if self._priced is None or self._priced[0] is not network:
            self._priced = network, network.prices([(entry.kind, entry.axes) for entry in self.collectives])
        return self._priced[1]

    def _hot(self, variables: np.ndarray, of_experts: Sequence[bool]) -> np.ndarray | None:
        """How many times longer than on average each entry takes on the busiest device; None where it never does."""
        if self.hot == 1:
            return None
        shared = variables[:, [VARIABLES.index("expert")]] > 1
        return np.where(shared & np.array(of_experts), self.hot, 1.0)

    @cached_property
    def _dtypes(self) -> list[str]:
        """What each entry's matmuls take; empty where it has none."""
        other, inside = self.view.table.compute_dtype, self.matmul_dtype
        kinds = {"matmul": inside, "attention": other}
        return [
            kinds.get(entry.kind, "") if entry.in_layers or entry.kind != "matmul" else other for entry in self.works
        ]

    @cached_property
    def _peaks(self) -> np.ndarray:
        """The peak rate that bounds each entry's FLOPs: the matrix units for matmuls, none for memory-bound passes."""
        return np.array([self.machine.device_flops_per_s(dtype) if dtype else np.inf for dtype in self._dtypes])

    @cached_property
    def _fractions(self) -> np.ndarray:
        """The part of its peak that each entry reaches."""
        return np.array([
            attention_fraction(self.machine) if entry.kind == "attention" else sustained_fraction(self.machine, dtype)
            for entry, dtype in zip(self.works, self._dtypes, strict=True)
        ])
