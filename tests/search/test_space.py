"""The space of plans against counting by hand."""

import numpy as np
import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.remat import POLICIES
from jaxplan.plan.sharding import AXES, sizes_in_order
from jaxplan.search.legal import RuleSet, mesh_reason, rules_reason
from jaxplan.search.meshes import meshes
from jaxplan.search.space import enumerate_space
from jaxplan.workload.shape import Workload

NO_ACCUMULATION = "ZeRO-2 keeps no gradients between the microbatches of a pipeline"
NO_CONTEXT = "ring or ulysses makes no difference where context is 1"
TOO_FEW_HEADS = "ulysses: a device's kv_heads are not divisible by context"
WHERE = [AXES.index(axis) for axis in ("tensor", "stage", "group")]


def legal(tensor, stage, group):
    return tensor <= 4 and stage <= 4 and (group == 1 or tensor == 4)


NOTHING_TO_SHARD = "sequence sharding changes nothing where tensor is 1"
LIMITS = {"embed": 256, "kv_heads": 4, "heads": 8, "mlp": 512, "vocab": 1024, "seq": 256}


def of(**sizes):
    return dict(zip(AXES, sizes_in_order(sizes), strict=True))


@pytest.mark.parametrize(("axes", "count"), [(("data", "fsdp", "tensor"), 10), (AXES, 84)])
def test_eight_devices_have_so_many_ordered_factorizations(axes, count):
    found = list(meshes(8, axes))
    assert len(found) == len(set(found)) == count       # C(3 + k - 1, 3): three twos over k axes
    assert all(np.prod(sizes) == 8 for sizes in found)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"fsdp": 8}, ""),
        ({"tensor": 8}, "kv_heads is not divisible by tensor"),
        ({"data": 64}, "batch is not divisible by data x fsdp"),
        ({"fsdp": 3}, "batch is not divisible by data x fsdp"),
        ({"fsdp": 32, "stage": 2}, "batch is not divisible by data x fsdp x stage"),
        ({"tensor": 4, "group": 2}, ""),
        ({"tensor": 2, "group": 2}, "a key-value head's queries are split (group) only where tensor is kv_heads"),
        ({"tensor": 4, "group": 4}, "heads is not divisible by tensor x group"),
        ({"context": 2}, "a device's chunk of the sequence is no multiple of 128 tokens, a kernel's least block"),
        ({"context": 256}, "seq is not divisible by twice context"),
        ({"stage": 4}, ""),
        ({"stage": 8}, "stages do not divide the layers"),
        ({"expert": 2}, "expert does not divide the experts"),
    ],
)
def test_reasons_of_meshes(workload, sizes, reason):
    assert mesh_reason(of(**sizes), workload, LIMITS) == reason


@pytest.mark.parametrize(
    ("sizes", "rules", "reason"),
    [
        ({"data": 2, "fsdp": 4}, RuleSet(True, True), ""),
        ({"fsdp": 8}, RuleSet(True, True), "ZeRO-1 shards nothing where data is 1"),
        ({"data": 2, "fsdp": 256}, RuleSet(True, True), "embed is not divisible by fsdp x data (ZeRO-1)"),
        ({"fsdp": 8}, RuleSet(False, False), NOTHING_TO_SHARD),
        ({"stage": 2, "tensor": 2}, RuleSet(False, False), "context and stage axes come with sequence sharding"),
        ({"stage": 2, "data": 2}, RuleSet(True, True, zero2=True), NO_ACCUMULATION),
        ({"fsdp": 8}, RuleSet(False, True, context="ulysses"), NO_CONTEXT),
        ({"context": 2, "tensor": 2}, RuleSet(False, True, context="ulysses"), ""),
        ({"context": 8}, RuleSet(False, True, context="ulysses"), TOO_FEW_HEADS),
    ],
)
def test_reasons_of_rules(workload, sizes, rules, reason):
    assert rules_reason(of(**sizes), rules, workload, LIMITS) == reason


def test_every_candidate_is_a_valid_plan_and_refused_ones_are_counted(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    for row in range(len(space)):
        plan = space.plan(row, machine, workload, "splash", {})     # the constructor proves it
        assert plan.local_sequences >= 1
    # tensor=8 does not divide 4 kv heads; 256 tokens make no two chunks of 128 for two devices
    assert space.rejected["kv_heads is not divisible by tensor"] == 1
    assert set(space.size_of("context")) == {1} and set(space.size_of("stage")) == {1, 2, 4}
    # 8 = data x fsdp x tensor x stage x group, less tensor=8, stage=8, group without tensor=4
    every = meshes(8, ("data", "fsdp", "tensor", "stage", "group"))
    assert sorted(space.meshes) == sorted(mesh for mesh in every if legal(*(mesh[i] for i in WHERE)))


def test_microbatches_are_all_divisors_of_the_local_batch(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    whole = space.meshes.index(sizes_in_order({"fsdp": 8}))
    assert sorted(set(space.microbatches[space.mesh == whole].tolist())) == [1, 2, 4]      # 32 sequences over 8


def test_a_batch_that_nothing_divides_is_refused_with_a_batch_that_works(table, workload):
    machine = catalogue.machine("4x4", "v5e", None)
    with pytest.raises(InputError, match=r"batch 3 over 16 devices leaves no legal plan.*--batch 16"):
        enumerate_space(Workload(workload.model, batch=3, seq=256), table, machine)


def test_groups_of_layers_divide_what_a_stage_runs_in_a_row(workload, table, machine):
    """Of the rows with stages: layers / (stages x repeats) is a multiple of the policy's group."""
    space = enumerate_space(workload, table, machine)
    group = np.array([POLICIES[name].group for name in space.policies])[space.policy]
    stages = np.array(space.meshes)[space.mesh, AXES.index("stage")]
    layers = workload.model.repeated_layers // (stages * space.repeats)
    assert (layers[stages > 1] % group[stages > 1] == 0).all() and (group[stages > 1] > 1).any()
    assert space.rejected["groups of layers between kept inputs do not divide a stage's layers"] > 0
