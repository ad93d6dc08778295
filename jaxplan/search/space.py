"""Every legal plan of a workload on a machine, as arrays; every illegal one counted with its reason."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.terms import rows
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis, Plan, loss_chunks_for
from jaxplan.plan.remat import policies_of
from jaxplan.search.dims import STORAGE_DIMS, TENSOR_DIMS, dim_sizes
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

Sizes = tuple[int, int, int]        # data, fsdp, tensor


@dataclass(frozen=True)
class RuleSet:
    """The two decisions that change the rules: ZeRO-1 over `data`, sequence sharding at the boundary."""

    zero1: bool
    sequence_sharding: bool


@dataclass(frozen=True)
class Space:
    """All candidates. Row `i` of every array is one plan.

    Attributes:
        meshes: the distinct mesh sizes (data, fsdp, tensor).
        mesh: index into `meshes`; policy: index into `policies`; rules: index into `rule_sets`.
        rejected: how many candidates were refused, by reason.
    """

    meshes: tuple[Sizes, ...]
    policies: tuple[str, ...]
    rule_sets: tuple[RuleSet, ...]
    mesh: np.ndarray
    policy: np.ndarray
    rules: np.ndarray
    microbatches: np.ndarray
    loss_chunks: np.ndarray
    rejected: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.mesh)

    def variables(self) -> np.ndarray:
        """`estimate.terms.VARIABLES` of every plan, float [plans, variables]."""
        sizes = np.array(self.meshes, dtype=float).reshape(-1, 3)[self.mesh]
        return rows(sizes, self.microbatches, self.loss_chunks)

    def plan(self, index: int, machine: Machine, workload: Workload, attention: str, flags: Mapping) -> Plan:
        """One candidate as a plan."""
        names = ("data", "fsdp", "tensor")
        rules = self.rule_sets[self.rules[index]]
        sizes = self.meshes[self.mesh[index]]
        return Plan(
            machine=machine,
            workload=workload,
            axes=tuple(MeshAxis(name, size, name) for name, size in zip(names, sizes, strict=True)),
            remat=self.policies[self.policy[index]],
            microbatches=int(self.microbatches[index]),
            loss_chunks=int(self.loss_chunks[index]),
            attention=attention,
            zero1=rules.zero1,
            sequence_sharding=rules.sequence_sharding,
            compiler_flags=flags,
        )


def factorizations(devices: int) -> Iterator[Sizes]:
    """All (data, fsdp, tensor) whose product is `devices`."""
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    for tensor in divisors:
        for fsdp in divisors:
            if devices % (tensor * fsdp) == 0:
                yield devices // (tensor * fsdp), fsdp, tensor


def enumerate_space(workload: Workload, table: Table, machine: Machine) -> Space:
    """Every candidate that divides evenly, and the count of those that do not, by reason.

    Raises:
        InputError: the batch cannot be divided over the machine in any way.
    """
    rejected: Counter[str] = Counter()
    rows: list[tuple[int, int, int, int, int]] = []
    meshes: list[Sizes] = []
    policies = tuple(policies_of(workload))
    rule_sets = tuple(RuleSet(z, s) for z in (False, True) for s in (True, False))
    limits = dim_sizes(table)
    for sizes in factorizations(machine.devices):
        reason = mesh_reason(sizes, workload, limits)
        if reason:
            rejected[reason] += 1
            continue
        meshes.append(sizes)
        for rules, rule_set in enumerate(rule_sets):
            reason = rules_reason(sizes, rule_set, limits)
            if reason:
                rejected[reason] += 1
                continue
            for micro, policy in itertools.product(
                _divisors(workload.batch // (sizes[0] * sizes[1])), range(len(policies))
            ):
                local = workload.batch // (sizes[0] * sizes[1] * micro)
                chunks = 1      # a user's loss is as it is written
                if workload.model is not None:
                    chunks = loss_chunks_for(local * workload.seq, limits.get("vocab", sizes[2]) // sizes[2])
                rows.append((len(meshes) - 1, policy, rules, micro, chunks))
    if not rows:
        raise InputError(*no_candidates(workload, machine, limits, rejected))
    mesh, policy, rules, micro, chunks = np.array(rows).T
    return Space(tuple(meshes), policies, rule_sets, mesh, policy, rules, micro, chunks, dict(rejected))


def mesh_reason(sizes: Sizes, workload: Workload, limits: Mapping[str, int]) -> str:
    """Why these mesh sizes are illegal for every plan, or an empty text."""
    data, fsdp, tensor = sizes
    if workload.batch % (data * fsdp):
        return "batch is not divisible by data x fsdp"
    if limits.get("embed", fsdp) % fsdp:
        return "embed is not divisible by fsdp"
    for dim in TENSOR_DIMS:
        if limits.get(dim, tensor) % tensor:
            return f"{dim} is not divisible by tensor"
    for axis, size, dims in (("fsdp", fsdp, STORAGE_DIMS), ("tensor", tensor, TENSOR_DIMS)):
        if size > 1 and not set(dims) & set(limits):
            return f"{axis} has no dim of a weight to shard"
    return ""


def rules_reason(sizes: Sizes, rules: RuleSet, limits: Mapping[str, int]) -> str:
    """Why this rule set is illegal (or says nothing new) on these mesh sizes, or an empty text."""
    data, fsdp, tensor = sizes
    if rules.zero1 and data == 1:
        return "ZeRO-1 shards nothing where data is 1"
    if rules.zero1 and limits.get("embed", 1) % (fsdp * data):
        return "embed is not divisible by fsdp x data (ZeRO-1)"
    if not rules.sequence_sharding and tensor == 1:
        return "sequence sharding changes nothing where tensor is 1"
    if not rules.sequence_sharding and "seq" not in limits:
        return "sequence sharding changes nothing where there is no sequence"
    if rules.sequence_sharding and limits.get("seq", tensor) % tensor:
        return "seq is not divisible by tensor"
    return ""


def no_candidates(
    workload: Workload, machine: Machine, limits: Mapping[str, int], rejected: Mapping[str, int]
) -> tuple[str, str, str]:
    """The three parts of the message when nothing divides evenly."""
    reasons = "; ".join(f"{reason} ({count})" for reason, count in sorted(rejected.items(), key=lambda r: -r[1]))
    good = [b for b in range(1, 4 * machine.devices + 1) if b % machine.devices == 0][:1]
    near = -(-workload.batch // machine.devices) * machine.devices
    return (
        f"batch {workload.batch} over {machine.devices} devices leaves no legal plan: {reasons}",
        "a batch that data x fsdp divides",
        f"--batch {near or good[0]}",
    )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
