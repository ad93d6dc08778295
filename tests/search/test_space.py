"""The space of plans against counting by hand."""

import numpy as np
import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.search.space import RuleSet, enumerate_space, factorizations, mesh_reason, rules_reason
from jaxplan.workload.shape import Workload

NOTHING_TO_SHARD = "sequence sharding changes nothing where tensor is 1"
LIMITS = {"embed": 256, "kv_heads": 4, "heads": 8, "mlp": 512, "vocab": 1024, "seq": 256}


def test_eight_devices_have_ten_ordered_factorizations():
    found = list(factorizations(8))
    assert len(found) == len(set(found)) == 10      # C(3 + 2, 2): three twos over three axes
    assert all(np.prod(sizes) == 8 for sizes in found)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1, 8, 1), ""),
        ((1, 1, 8), "kv_heads is not divisible by tensor"),
        ((64, 1, 1), "batch is not divisible by data x fsdp"),
        ((1, 3, 1), "batch is not divisible by data x fsdp"),
    ],
)
def test_reasons_of_meshes(workload, sizes, reason):
    assert mesh_reason(sizes, workload, LIMITS) == reason


@pytest.mark.parametrize(
    ("sizes", "rules", "reason"),
    [
        ((2, 4, 1), RuleSet(zero1=True, sequence_sharding=True), ""),
        ((1, 8, 1), RuleSet(zero1=True, sequence_sharding=True), "ZeRO-1 shards nothing where data is 1"),
        ((2, 256, 1), RuleSet(zero1=True, sequence_sharding=True), "embed is not divisible by fsdp x data (ZeRO-1)"),
        ((1, 8, 1), RuleSet(False, False), NOTHING_TO_SHARD),
    ],
)
def test_reasons_of_rules(sizes, rules, reason):
    assert rules_reason(sizes, rules, LIMITS) == reason


def test_every_candidate_is_a_valid_plan_and_refused_ones_are_counted(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    for row in range(len(space)):
        plan = space.plan(row, machine, workload, "splash", {})     # the constructor proves it
        assert plan.local_sequences >= 1
    # 10 meshes, tensor=8 does not divide 4 kv heads
    assert len(space.meshes) == 9
    assert space.rejected["kv_heads is not divisible by tensor"] == 1


def test_microbatches_are_all_divisors_of_the_local_batch(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    whole = space.meshes.index((1, 8, 1))
    assert sorted(set(space.microbatches[space.mesh == whole].tolist())) == [1, 2, 4]      # 32 sequences over 8


def test_a_batch_that_nothing_divides_is_refused_with_a_batch_that_works(table, workload):
    machine = catalogue.machine("2x4", "v5e", None)
    with pytest.raises(InputError, match=r"batch 3 over 8 devices leaves no legal plan.*--batch 8"):
        enumerate_space(Workload(workload.model, batch=3, seq=256), table, machine)
