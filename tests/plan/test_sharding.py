"""Rules: who owns an axis, and that a record says of every array what the training step does with it."""

import dataclasses
from functools import cache

import jax
import pytest
from sample_plans import MODEL, make_plan

from jaxplan.plan.record import PlanRecord, leaf_specs
from jaxplan.plan.sharding import Rules, standard_rules
from jaxplan.plan.use import LoadedPlan
from jaxplan.workload.decoder import loss_function
from jaxplan.workload.optimizer import optimizer
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.step import build
from jaxplan.workload.table import Table

AXES = ("data", "fsdp", "tensor")


def spec(rules: Rules, *names: str) -> tuple:
    return rules.spec(tuple((i,) for i in range(len(names))), names, AXES)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("embed", "mlp"), (("fsdp",), ("tensor",))),
        (("batch", "seq", "embed"), (("data", "fsdp"), ("tensor",), ())),  # batch owns fsdp before embed
        (("batch", "seq", "mlp"), (("data", "fsdp"), (), ("tensor",))),  # mlp owns tensor before seq
        (("vocab", "embed"), (("tensor",), ("fsdp",))),
        (("layers", "embed"), ((), ())),  # a norm's scale stays whole
        (("embed",), ((),)),
        (("batch",), (("data", "fsdp"),)),
        (("head_dim", "embed"), ((), ("fsdp",))),
        ((), ()),
    ],
)
def test_an_axis_belongs_to_the_dim_of_highest_priority(names: tuple, expected: tuple) -> None:
    assert spec(standard_rules(True, False), *names) == expected


def test_a_key_value_head_is_whole_on_every_device_of_a_group() -> None:
    """The sequence, which `group` shards between blocks, does not take it where keys are made."""
    rules, axes = standard_rules(True, False), ("tensor", "group")

    def spec(*names: str) -> tuple:
        return rules.spec(tuple((i,) for i in range(len(names))), names, axes)

    assert spec("batch", "seq", "embed")[1] == ("tensor", "group")
    assert spec("batch", "seq", "heads", "head_dim")[1:3] == ((), ("tensor", "group"))
    assert spec("batch", "seq", "kv_heads", "head_dim")[1:3] == ((), ("tensor",))
    assert spec("batch", "seq", "kv_heads", "group")[1:] == ((), ("tensor",), ("group",))   # query heads, by name


def test_sequence_sharding_can_be_left_out() -> None:
    assert spec(standard_rules(False, False), "batch", "seq", "embed")[1] == ()


def test_zero1_refines_the_parameters_storage() -> None:
    rules = standard_rules(True, True)
    stored, moments = spec(rules, "embed", "mlp"), spec(rules.storage_of_optimizer, "embed", "mlp")
    assert moments == (("fsdp", "data"), ("tensor",))
    # an axis order that begins as the parameter's does: updating needs no exchange of what is stored
    assert all(m[: len(s)] == s for s, m in zip(stored, moments, strict=True))


def test_no_axis_shards_two_dims_of_a_tensor() -> None:
    rules = standard_rules(True, True)
    names = ("vocab", "mlp", "heads", "batch", "embed", "seq")
    axes = [axis for entry in spec(rules, *names) for axis in entry]
    assert len(axes) == len(set(axes))


def test_rules_survive_json() -> None:
    rules = standard_rules(True, True)
    assert Rules.from_json(rules.to_json()) == rules


VARIANTS = {
    "grouped": MODEL,
    "gpt": ModelShape(
        "gpt",
        2,
        64,
        128,
        8,
        8,
        8,
        256,
        "layernorm",
        "learned",
        "gelu",
        True,
        True,
        True,
        True,
        max_positions=32,
    ),
    "biased": dataclasses.replace(MODEL, attention_bias=True, output_bias=True, mlp_bias=True, qk_norm=True),
}


@cache
def traced(variant: str) -> Table:
    work = Workload(VARIANTS[variant], batch=16, seq=32)
    program = loss_function(work.model, work.batch, work.seq)
    dims = program.parameter_dims, program.batch_dims
    return trace(program.loss, program.params, program.batch, *dims, update=optimizer(work.optimizer))


@pytest.mark.parametrize(("sizes", "zero1"), [((2, 2, 2), True), ((1, 8, 1), False)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_record_says_what_the_training_step_does(variant: str, sizes: tuple, zero1: bool) -> None:
    """Two ways to one answer: specs from the traced program's named dims, and the step's own shardings."""
    work = Workload(VARIANTS[variant], batch=16, seq=32)
    plan = make_plan(*sizes, workload=work, zero1=zero1)
    loaded = LoadedPlan(PlanRecord(plan, *leaf_specs(traced(variant), plan.rules, tuple(plan.sizes))))
    mesh = loaded.mesh(virtual=True)
    step = build(plan, mesh, impose=False)
    for abstract in (step.abstract_state, step.abstract_batch):
        leaves = jax.tree_util.tree_flatten_with_path(abstract)[0]
        found = jax.tree.leaves(loaded.shardings(abstract, mesh))
        for (path, leaf), sharding in zip(leaves, found, strict=True):
            where = f"{jax.tree_util.keystr(path)}: step {leaf.sharding.spec}, record {sharding.spec}"
            assert leaf.sharding.is_equivalent_to(sharding, len(leaf.shape)), where
