"""What mixtures of experts cost: kernels that run, FLOPs and all-to-alls of the table, against closed forms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from jaxplan.estimate.communication import traffic
from jaxplan.estimate.terms import rows
from jaxplan.estimate.view import View
from jaxplan.machine import catalogue
from jaxplan.plan.remat import POLICIES
from jaxplan.plan.sharding import AXES, standard_rules
from jaxplan.workload.cut import policy_cut
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.parameters import parameter_count
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ExpertShape, ModelShape

BATCH, SEQ = 8, 16
EXACT = {"compute_dtype": jnp.float32}
PLAIN = ModelShape(
    "plain", layers=2, embed=32, mlp=48, heads=8, kv_heads=4, head_dim=8, vocab=64, experts=ExpertShape(8, 2, 40)
)
RICH = dataclasses.replace(
    PLAIN,
    name="rich",
    layers=3,
    experts=ExpertShape(8, 2, 40, shared=2, shared_mlp=24, first_dense_layers=1, router_bias=True, scoring="sigmoid"),
)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3"])
def test_parameters_are_counted_to_the_last_one(name):
    shape = catalogue.model(name)
    model = loss_function(shape, 1, 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == parameter_count(shape)
    assert ("dense_layers" in model.params) == (name == "deepseek-v3")
# --------------------------------------------------------------------------------------- on every mesh


def calls(jaxpr, times=1):
    """How often each kernel is executed in a jaxpr, loops counted by their length."""
    total = {}
    for equation in jaxpr.eqns:
        name = equation.params.get("name", "")
        if isinstance(name, str) and name.startswith("jaxplan_"):
            found = {name.removeprefix("jaxplan_"): times if equation.invars else 0}
        else:
            inner = times * equation.params["length"] if equation.primitive.name == "scan" else times
            bodies = [getattr(value, "jaxpr", value) for value in equation.params.values()]
            found = {}
            for body in bodies:
                for key, count in calls(body, inner).items() if hasattr(body, "eqns") else ():
                    found[key] = found.get(key, 0) + count
        for key, count in found.items():
            total[key] = total.get(key, 0) + count
    return total


@pytest.mark.parametrize(
    ("policy", "forward"), [("none", 1), ("dots", 1), ("mlp", 2), ("full", 2), ("every-2", 2), ("nested-4", 3)]
)
def test_policies_run_the_exchange_again_but_never_the_router(policy, forward):
    deep = dataclasses.replace(PLAIN, layers=4)
    model = loss_function(deep, BATCH, SEQ, remat=policy, **EXACT)
    found = calls(jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch).jaxpr)
    assert found["route"] == found["dispatch_backward"] == found["combine_backward"] == 4
    assert found["dispatch_forward"] == found["combine_forward"] == 4 * forward


def test_without_a_capacity_the_forward_kernel_never_runs_twice():
    model = loss_function(PLAIN, BATCH, SEQ, remat="full", kernels=Kernels(dispatch="dropless"), **EXACT)
    found = calls(jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch).jaxpr)
    assert found["choose"] == found["gated_experts_forward"] == found["gated_experts_backward"] == PLAIN.layers


@functools.cache
def table_of(shape, **kernels):
    model = loss_function(shape, BATCH, SEQ, kernels=Kernels(**kernels))
    return trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims)


def test_the_table_names_every_dim():
    table = table_of(RICH)
    assert not table.uncovered
    values = {name: [v for v in table.values if v.tag == name] for name in ("dispatched", "mlp_up", "route")}
    named = {tuple(table.dims[d].name for d in v.dims) for v in values["dispatched"]}
    assert named == {("expert", "batch", "slot", "embed")}
    hidden = {tuple(sorted(table.dims[d].name for d in v.dims)) for v in values["mlp_up"]}
    assert hidden == {("batch", "expert", "mlp", "slot"), ("batch", "mlp", "seq")}   # routed; shared and dense
    kinds = {op.kind for op in table.operations if op.primitive == "jaxplan_dispatch_forward"}
    assert kinds == {"lookup"} and values["route"]


@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=lambda s: s.name)
@pytest.mark.parametrize(
    "kernels", [{"capacity_factor": 1.25}, {"capacity_factor": 1.0}, {"dispatch": "dropless"}], ids=str
)
def test_work_of_the_experts(shape, kernels):
    """3 x 2 B S k D F a layer, times the capacity factor: 16 tokens x 2 / 8 experts = 4, or 5, slots an expert."""
    table, e = table_of(shape, **kernels), shape.experts
    assert not table.uncovered

    def flops(phase):
        return sum(
            op.flops * op.times
            for op in table.operations
            if op.kind == "matmul" and op.phase == phase and "expert" in {table.dims[d].name for d in op.dims}
        )

    once = shape.repeated_layers * 3 * 2 * BATCH * SEQ * e.top_k * shape.embed * e.mlp
    factor = kernels.get("capacity_factor", 1.0)
    assert flops("forward") == pytest.approx(factor * once)
    again = 1 if "dispatch" in kernels else 0       # the dropless kernel computes everything once more
    assert flops("backward") == pytest.approx((2 + again) * factor * once)


def exchanged(table, policy, of):
    """{axes: (bytes, executions)} of all-to-alls inside of the layers, on a mesh of these sizes."""
    view = View(table, standard_rules(True, False, experts=True), policy_cut(table, POLICIES[policy]))
    at = rows([[of.get(axis, 1) for axis in AXES]], [1], [1])
    found = {}
    for entry in traffic(view):
        axes = tuple(axis for axis in entry.axes if of.get(axis, 1) > 1)
        if entry.kind == "all-to-all" and axes == ("expert",):
            nbytes, count = found.get(axes, (0.0, 0.0))
            found[axes] = nbytes + float(entry.nbytes.at(at)[0]), count + float(entry.executions.at(at)[0])
    return found


@pytest.mark.parametrize("of", [{"expert": 4, "fsdp": 2}, {"expert": 2, "context": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize(("policy", "times"), [("none", 4), ("dots", 4), ("full", 6)])
def test_traffic_of_experts(policy, times, of):
    """Two all-to-alls forward and two backward a layer, each the slots of a device: B E C D in bfloat16 over 8."""
    found = exchanged(table_of(PLAIN, capacity_factor=1.0), policy, of)
    slots = BATCH * 8 * 4 * PLAIN.embed * 2 / 8
    assert found == {("expert",): (pytest.approx(PLAIN.layers * times * slots), PLAIN.layers * times)}


def test_traffic_without_a_capacity():
    """Two forward and four backward; with tensor axes each of them exchanges all tokens of its rows."""
    table, rows_of_one = table_of(PLAIN, dispatch="dropless"), BATCH * SEQ * 2 * PLAIN.embed * 2
    for of, shards in (({"expert": 4, "fsdp": 2}, 8), ({"expert": 2, "context": 2, "tensor": 2}, 4)):
        found = exchanged(table, "full", of)
        assert found == {("expert",): (pytest.approx(PLAIN.layers * 6 * rows_of_one / shards), PLAIN.layers * 6)}
