"""What a plan's step is made of, against closed forms and against prices asked for one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place
from jaxplan.machine.reached import hidden_share
from jaxplan.plan.plan import MeshAxis, Plan, mesh_axes
from jaxplan.plan.record import MemoryLedger, Part, PlanRecord, TimeLedger
from jaxplan.search.explain import Correction, anatomy, correction
from jaxplan.search.roofline import Chip, Roofline

H100 = catalogue.machine("2x8", "h100", None)


def plan_of(workload, machine, sizes, **changes):
    decided = {"remat": "full", "microbatches": 2, "attention": "cudnn"}
    return Plan(machine=machine, workload=workload, axes=mesh_axes(sizes), **{**decided, **changes})


def own_prices(moved, links):
    """Seconds of collectives on other links, by the formulas of `machine.collectives`."""
    return sum(m.executions * float(seconds(m.kind, m.nbytes / m.executions, links.achieved())) for m in moved)


@pytest.mark.parametrize("changes", [{}, {"remat": "none"}, {"remat": "dots", "microbatches": 1}])
@pytest.mark.parametrize(
    "sizes", [{"fsdp": 16}, {"fsdp": 4, "tensor": 4}, {"stage": 2, "fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 4}]
)
def test_the_parts_add_up_to_the_ledger(workload, table, sizes, changes):
    found = anatomy(plan_of(workload, H100, sizes, **changes), table)
    time, lines = found.estimate.time_s, found.rooflines
    assert math.isclose(sum(time.values()), found.estimate.value_s)
    for kind in {line.kind for line in lines}:
        spent = sum(line.seconds for line in lines if line.kind == kind and not line.recomputed)
        assert math.isclose(spent, time.get(kind, 0.0), rel_tol=1e-9)
    again = sum(line.seconds for line in lines if line.recomputed)
    assert math.isclose(again, time.get("recompute", 0.0), abs_tol=1e-15)
    exposed = sum(spent for name, spent in time.items() if name.startswith("exposed"))
    assert math.isclose(sum(moved.exposed_s for moved in found.moved), exposed, rel_tol=1e-9)
    assert all(0 <= moved.exposed_s <= moved.seconds * (1 + 1e-9) for moved in found.moved)


def test_matmul_flops_are_six_a_weight_and_token(workload, table):
    model, one = workload.model, catalogue.machine("1x1", "h100", None)
    found = anatomy(plan_of(workload, one, {}, remat="none", microbatches=1), table)
    attention = model.embed * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    weights = model.layers * (attention + 3 * model.embed * model.mlp) + model.embed * model.vocab
    matmul = next(line for line in found.rooflines if line.kind == "matmul")
    assert math.isclose(matmul.flops, 6 * weights * workload.tokens)
    # backward attention recomputes the scores: a factor of 3.5 instead of 3 (Dao 2023, arXiv:2307.08691, section 4.1)
    kernel = next(line for line in found.rooflines if line.kind == "attention")
    assert math.isclose(found.executed_flops, matmul.flops + kernel.flops)
    assert math.isclose(found.model_flops, matmul.flops + kernel.flops * 3 / 3.5)
    assert math.isclose(found.mfu(1.0), found.model_flops / H100.chip.matmul_flops_per_s["bfloat16"])


def test_a_roofline_is_bound_by_its_longer_side():
    chip = Chip(flops_per_s=100.0, fraction=0.5, hbm_bytes_per_s=10.0, attention_fraction=0.3, hbm_fraction=0.8)
    assert chip.ridge == 100.0 * 0.5 / (10.0 * 0.8)
    assert Roofline("matmul", False, 600.0, 100.0, 12.0, compute_s=12.0, memory_s=10.0).bound == "compute"
    assert Roofline("matmul", False, 400.0, 100.0, 10.0, compute_s=8.0, memory_s=10.0).bound == "memory"
    assert Roofline("matmul", False, 400.0, 0.0, 10.0, 8.0, 0.0).intensity == math.inf


def test_what_an_axis_shards(workload, table):
    plan = plan_of(workload, H100, {"data": 2, "fsdp": 2, "tensor": 4}, zero1=True)
    data, fsdp, tensor = (axis.shards for axis in anatomy(plan, table).axes)
    norms = (2 * workload.model.layers + 1) * workload.model.embed
    whole = norms / table.parameter_count       # vectors are not stored in parts
    assert fsdp.weights == ("embed",) and math.isclose(fsdp.weights_share, 1 - whole)
    assert tensor.weights_share == fsdp.weights_share and set(tensor.weights) >= {"mlp", "vocab"}
    assert (data.weights, data.weights_share) == ((), 0.0)
    assert data.optimizer == ("embed",) and math.isclose(data.optimizer_share, 1 - whole, rel_tol=1e-4)
    assert data.activations == fsdp.activations == ("batch",)
    assert "seq" in tensor.activations and "batch" not in tensor.activations


def test_what_moves_over_an_axis(workload, table):
    found = anatomy(plan_of(workload, H100, {"fsdp": 4, "tensor": 4}), table)
    moved = {axis.name: {(m.kind, m.what) for m in axis.moved if m.axes == (axis.name,)} for axis in found.axes}
    assert moved["fsdp"] >= {("all-gather", "weights"), ("reduce-scatter", "gradients")}
    assert moved["tensor"] >= {("all-gather", "activations"), ("reduce-scatter", "activations")}
    assert all(m.exposed_s == m.seconds for m in found.moved if m.what == "activations")


def test_axes_that_trade_places_cost_what_the_other_links_cost(workload, table):
    sizes = {"data": 1, "fsdp": 4, "tensor": 4}
    found = anatomy(plan_of(workload, H100, sizes), table)
    fsdp, tensor = found.axes
    assert (fsdp.name, tensor.name, tensor.links.medium) == ("fsdp", "tensor", "NVLink: 4 chips")
    # equal sizes: in the place of another axis the group is the other's group, and both together what they were
    links = {axis: place(H100, sizes).links(axis) for axis in ("fsdp", "tensor")}
    alone = {axis: [m for m in found.moved if m.axes == (axis,)] for axis in links}
    both = [m for m in found.moved if len(m.axes) == 2]
    for axis, other in (("fsdp", "tensor"), ("tensor", "fsdp")):
        use = next(a for a in found.axes if a.name == axis)
        (trade,) = use.trades
        assert math.isclose(use.own_s, own_prices(alone[axis], links[axis]) + sum(m.seconds for m in both))
        assert math.isclose(trade.own_s, own_prices(alone[axis], links[other]) + sum(m.seconds for m in both))
        assert trade.links == links[other]
    # state hides under compute as far as that lasts, activations do not
    busy = sum(line.seconds for line in found.rooflines)
    blocking = {axis: [m for m in moved if m.what == "activations"] for axis, moved in alone.items()}
    hideable = {axis: [m for m in moved if m.what != "activations"] for axis, moved in alone.items()}
    waits = sum(own_prices(blocking[a], links[b]) for a, b in (("fsdp", "tensor"), ("tensor", "fsdp")))
    waits += sum(m.seconds for m in both if m.what == "activations")
    hides = sum(own_prices(hideable[a], links[b]) for a, b in (("fsdp", "tensor"), ("tensor", "fsdp")))
    hides += sum(m.seconds for m in both if m.what != "activations")
    assert math.isclose(tensor.trades[0].step_s, busy + hides - hidden_share(H100) * min(busy, hides) + waits)
    assert fsdp.trades[0].step_s == tensor.trades[0].step_s != found.estimate.value_s


def test_schedules_side_by_side(workload, table):
    p, m = 2, 4
    found = anatomy(plan_of(workload, H100, {"stage": p, "fsdp": 8}, microbatches=m), table)
    orders = {(order.name, order.repeats): order for order in found.orders}
    assert {key for key, order in orders.items() if order.chosen} == {("gpipe", 1)}
    share = {key: order.bubble for key, order in orders.items()}
    assert math.isclose(share["gpipe", 1], (p - 1) / (m + p - 1)) and math.isclose(found.bubble, (m + p - 1) / m)
    assert math.isclose(share["circular", 2], (p - 1) / (2 * m + p - 1))        # 4 layers: two chunks a stage
    # ZB-H1 waits (p - 1)(F + B - W) of m (F + B + W): Qi et al. 2023, arXiv:2401.10241, table 2
    assert math.isclose(share["zero-bubble", 1], (p - 1) / (3 * m + p - 1))
    assert orders["1f1b", 1].in_flight == p and not orders["1f1b", 1].executable
    assert math.isclose(orders["gpipe", 1].step_s, found.estimate.value_s)
    assert orders["dualpipe", 1].total_bytes is None
    short = anatomy(plan_of(workload, H100, {"stage": p, "fsdp": 8}, microbatches=1), table)
    refused = {order.name: order.illegal for order in short.orders if order.illegal}
    assert refused["circular"] == "circular needs as many microbatches as stages" and "gpipe" not in refused
    assert anatomy(plan_of(workload, H100, {"fsdp": 16}), table).orders == ()


def test_what_cannot_be_explained_is_bad_input(workload, table):
    axes = (MeshAxis("rows", 16, "data"), *mesh_axes({}))
    odd = Plan(H100, workload, axes, remat="full", microbatches=2, attention="cudnn")
    with pytest.raises(InputError, match="an axis 'rows'"):
        anatomy(odd, table)
    strange = Plan(catalogue.machine("2x4", "v5e", None), workload, mesh_axes({"fsdp": 8}), "full", 2, "splash")
    with pytest.raises(InputError, match="no matmul peak for float64"):
        anatomy(strange, replace(table, compute_dtype="float64"))


def test_a_plan_file_corrects_the_estimate_until_it_is_edited(workload):
    plan = plan_of(workload, H100, {"fsdp": 16})
    record = PlanRecord(
        plan,
        memory=MemoryLedger((Part("params", 30.0, "estimated"),), 100),
        time=TimeLedger((Part("matmul", 3.0, "estimated"),), 1.0, 5.0),
        evidence={"estimated": {"total_bytes": 20.0, "step_time_s": {"value": 2.0, "low": 1.0, "high": 3.0}}},
    )
    assert correction(record) == Correction(memory=1.5, time=1.5)
    assert correction(PlanRecord(plan, evidence=record.evidence)) == Correction()
    assert correction(replace(record, plan=replace(plan, remat="none"))) == Correction()
    with pytest.raises((TypeError, ValueError)):
        correction(replace(record, evidence={"estimated": {"total_bytes": "much"}}))
    assert np.isfinite(correction(replace(record, evidence={"estimated": {"total_bytes": 0}})).memory)
