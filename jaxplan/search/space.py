"""Every legal plan of a workload on a machine, as arrays; every illegal one counted with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.schedule_terms import pipelines
from jaxplan.estimate.terms import rows
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import Plan, divisors, loss_chunks_for, mesh_axes
from jaxplan.plan.remat import policies_of, policy
from jaxplan.plan.schedule import SCHEDULES, reason, schedule
from jaxplan.plan.sharding import AXES
from jaxplan.search.dims import dim_sizes
from jaxplan.search.legal import RuleSet, mesh_reason, rule_sets, rules_reason
from jaxplan.search.meshes import Sizes, meshes, searched_axes
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

EXECUTABLE = tuple(name for name, found in SCHEDULES.items() if found.executable)
STAGE = AXES.index("stage")


@dataclass(frozen=True)
class Space:
    """All candidates. Row `i` of every array is one plan.

    Attributes:
        meshes: the distinct mesh sizes, in the order of `AXES`.
        mesh: index into `meshes`; policy: index into `policies`; rules: index into `rule_sets`; schedule: index into
            `schedules`.
        rejected: how many candidates were refused, by reason.
    """

    workload: Workload
    meshes: tuple[Sizes, ...]
    policies: tuple[str, ...]
    rule_sets: tuple[RuleSet, ...]
    schedules: tuple[str, ...]
    mesh: np.ndarray
    policy: np.ndarray
    rules: np.ndarray
    schedule: np.ndarray
    repeats: np.ndarray
    microbatches: np.ndarray
    loss_chunks: np.ndarray
    rejected: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.mesh)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The axis sizes of every mesh, int [meshes, axes]."""
        return np.array(self.meshes).reshape(-1, len(AXES))

    def size_of(self, axis: str) -> np.ndarray:
        """The size of an axis in every plan."""
        return self.sizes[self.mesh, AXES.index(axis)]

    def variables(self, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """`estimate.terms.VARIABLES` of some plans (of all), float [plans, variables]."""
        sizes, micro = self.sizes[self.mesh[which]], self.microbatches[which]
        found = pipelines(self.schedules, self.schedule[which], sizes[:, STAGE], micro, self.repeats[which])
        rules = self.rules[which]
        ulysses = np.array([rule_set.context == "ulysses" for rule_set in self.rule_sets])[rules]
        offloaded = np.array([rule_set.offload_optimizer for rule_set in self.rule_sets])[rules]
        return rows(sizes, micro, self.loss_chunks[which], found, ulysses, offloaded)

    def plan(self, index: int, machine: Machine, workload: Workload, attention: str, flags: Mapping) -> Plan:
        """One candidate as a plan."""
        rules = self.rule_sets[self.rules[index]]
        sizes = dict(zip(AXES, self.meshes[self.mesh[index]], strict=True))
        return Plan(
            machine=machine,
            workload=workload,
            axes=mesh_axes(sizes),
            remat=self.policies[self.policy[index]],
            microbatches=int(self.microbatches[index]),
            loss_chunks=int(self.loss_chunks[index]),
            attention=attention,
            zero1=rules.zero1,
            zero2=rules.zero2,
            sequence_sharding=rules.sequence_sharding,
            context_attention=rules.context,
            offload_optimizer=rules.offload_optimizer,
            schedule=self.schedules[self.schedule[index]],
            repeats=int(self.repeats[index]),
            compiler_flags=flags,
        )


def enumerate_space(
    workload: Workload,
    table: Table,
    machine: Machine,
    schedules: Sequence[str] = EXECUTABLE,
    only: Iterable[Sizes] | None = None,
) -> Space:
    """Every candidate that divides evenly, and the count of those that do not, by reason.

    Args:
        schedules: the orders of a pipeline's microbatches that are tried (`plan.schedule.SCHEDULES`).
        only: the meshes that are tried; every one that the machine's devices make, unless given.

    Raises:
        InputError: the batch cannot be divided over the machine in any way.
    """
    host = machine.device_host_bytes_per_s is not None
    building = _Building(workload, dim_sizes(table), tuple(schedules), host)
    for sizes in meshes(machine.devices, searched_axes(workload, building.limits)) if only is None else only:
        building.add(sizes)
    if not building.parts:
        raise InputError(*no_candidates(workload, machine, building.rejected))
    return building.space()


class _Building:
    """A space on its way."""

    def __init__(
        self, workload: Workload, limits: Mapping[str, int], schedules: tuple[str, ...], host: bool
    ) -> None:
        self.workload, self.limits, self.schedules = workload, limits, schedules
        self.policies = tuple(policies_of(workload, groups=True, host=host))
        self.rule_sets = rule_sets(workload, host)
        self.rejected: Counter[str] = Counter()
        self.meshes: list[Sizes] = []
        self.parts: list[np.ndarray] = []

    def add(self, sizes: Sizes) -> None:
        """All candidates of one mesh."""
        of = dict(zip(AXES, sizes, strict=True))
        if broken := mesh_reason(of, self.workload, self.limits):
            self.rejected[broken] += 1
            return
        legal = []
        for i, rules in enumerate(self.rule_sets):
            if broken := rules_reason(of, rules, self.workload, self.limits):
                self.rejected[broken] += 1
            else:
                legal.append(i)
        orders = self._orders(of)
        if not legal or not orders:
            return
        self.meshes.append(sizes)
        pairs = [(r, p) for r in legal for p in range(len(self.policies))]
        grid = np.empty((len(orders), len(pairs), 7), dtype=np.int32)
        grid[..., 0] = len(self.meshes) - 1
        grid[..., 1:3] = np.array(pairs)[None]
        grid[..., 3:] = np.array(orders)[:, None]
        kept = grid.reshape(-1, 7)
        useless = np.array([rules.zero2 for rules in self.rule_sets])[kept[:, 1]] & (kept[:, 5] == 1)
        torn = self._torn(of["stage"], kept[:, 2], kept[:, 4])
        for words, dropped in (
            ("ZeRO-2 keeps no gradients where there is one microbatch", useless),
            ("groups of layers between kept inputs do not divide a stage's layers", torn),
        ):
            if dropped.any():
                self.rejected[words] += int(dropped.sum())
        self.parts.append(kept[~(useless | torn)])

    def _torn(self, stages: int, policies: np.ndarray, repeats: np.ndarray) -> np.ndarray:
        """Whether a policy's group of layers does not divide the layers that follow each other on a stage."""
        if stages == 1 or self.workload.model is None:
            return np.zeros(len(policies), bool)
        group = np.array([policy(name).group for name in self.policies])[policies]
        return self.workload.model.repeated_layers // (stages * repeats) % group != 0

    def _orders(self, of: Mapping[str, int]) -> list[tuple[int, int, int, int]]:
        """(schedule, repeats, microbatches, loss chunks) that a mesh can have."""
        here = self.workload.batch // (of["data"] * of["fsdp"] * of["expert"])
        found = []
        for micro in divisors(here):
            for i, repeats in self._schedules(of["stage"], micro):
                local = here // of["stage"] if of["stage"] > 1 else here // micro
                found.append((i, repeats, micro, self._loss_chunks(local, of)))
        return found

    def _schedules(self, stages: int, micro: int) -> list[tuple[int, int]]:
        if stages == 1:
            return [(0, 1)]
        layers = self.workload.model.repeated_layers if self.workload.model is not None else self.limits["layers"]
        found = []
        for i, name in enumerate(self.schedules):
            for repeats in divisors(layers // stages)[1:] if schedule(name).needs_repeats else [1]:
                if broken := reason(name, stages, micro, repeats, layers):
                    self.rejected[broken] += 1
                else:
                    found.append((i, repeats))
        return found

    def _loss_chunks(self, sequences: int, of: Mapping[str, int]) -> int:
        if self.workload.model is None:
            return 1        # a user's loss is as it is written
        shards = of["tensor"] * of["group"]
        tokens, vocab = sequences * self.workload.seq // of["context"], self.limits.get("vocab", shards)
        return loss_chunks_for(tokens, vocab // shards)

    def space(self) -> Space:
        mesh, rules, policy, order, repeats, micro, chunks = np.concatenate(self.parts).T
        return Space(
            self.workload,
            tuple(self.meshes),
            self.policies,
            self.rule_sets,
            self.schedules,
            *(mesh, policy, rules, order, repeats, micro, chunks),
            dict(self.rejected),
        )


def no_candidates(workload: Workload, machine: Machine, rejected: Mapping[str, int]) -> tuple[str, str, str]:
    """The three parts of the message when nothing divides evenly."""
    reasons = "; ".join(f"{words} ({count})" for words, count in sorted(rejected.items(), key=lambda r: -r[1]))
    near = -(-workload.batch // machine.devices) * machine.devices
    return (
        f"batch {workload.batch} over {machine.devices} devices leaves no legal plan: {reasons}",
        "a batch that data x fsdp divides",
        f"--batch {near}",
    )
