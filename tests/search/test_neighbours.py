"""Neighbours of a plan against all candidates of the space, compared plan by plan."""

import math
from dataclasses import replace

import pytest

from jaxplan.estimate.single import estimate_plan
from jaxplan.plan.plan import mesh_axes
from jaxplan.search.neighbours import neighbours, normal
from jaxplan.search.rank import MEMORY_MARGIN
from jaxplan.search.space import enumerate_space

FIELDS = ("remat", "microbatches", "sequence_sharding", "context_attention", "offload_optimizer")


@pytest.fixture(scope="module")
def plans(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    return [space.plan(row, machine, workload, "splash", {}) for row in range(len(space))]


def changed(plan, other):
    """The decisions in which two plans of one mesh differ, chunks of the loss aside."""
    found = {name for name in FIELDS if getattr(plan, name) != getattr(other, name)}
    found |= {"zero"} if (plan.zero1, plan.zero2) != (other.zero1, other.zero2) else set()
    return found | ({"schedule"} if (plan.schedule, plan.repeats) != (other.schedule, other.repeats) else set())


def picked(plans, **wanted):
    """The candidate with these decisions: sizes by axis, and fields of the plan."""
    fields = {name: value for name, value in wanted.items() if name in (*FIELDS, "zero1", "zero2", "schedule")}
    sizes = {name: size for name, size in wanted.items() if name not in fields}
    alike = {"zero1": False, "zero2": False, "sequence_sharding": True, "offload_optimizer": False, **fields}
    mesh = {axis.name: axis.size for axis in mesh_axes(sizes)}
    return next(
        plan for plan in plans
        if plan.sizes == mesh and all(getattr(plan, name) == value for name, value in alike.items())
    )


CASES = [
    {"fsdp": 8, "remat": "full", "microbatches": 2},
    {"data": 2, "fsdp": 2, "tensor": 2, "remat": "dots", "microbatches": 2, "zero1": True},
    {"stage": 2, "fsdp": 4, "remat": "full", "microbatches": 4, "schedule": "gpipe"},
]


@pytest.mark.parametrize("wanted", CASES)
def test_they_are_all_candidates_of_the_mesh_that_differ_by_one_decision(plans, table, wanted):
    plan = picked(plans, **wanted)
    expected = {p.fingerprint: changed(plan, p) for p in plans if p.axes == plan.axes and len(changed(plan, p)) == 1}
    found = {n.plan.fingerprint: {n.decision} for n in neighbours(plan, table) if n.decision != "mesh"}
    assert found == expected and len(found) > 5


@pytest.mark.parametrize("wanted", CASES)
def test_their_figures_are_those_of_the_plans(plans, table, wanted):
    found = neighbours(picked(plans, **wanted), table)
    assert [n.value_s for n in found] == sorted(n.value_s for n in found)
    for neighbour in found[::5]:
        estimate = estimate_plan(neighbour.plan, table)
        assert math.isclose(neighbour.value_s, estimate.value_s, rel_tol=1e-9)
        assert math.isclose(neighbour.total_bytes, estimate.total_bytes, rel_tol=1e-9)


@pytest.mark.parametrize("wanted", CASES)
def test_of_another_mesh_the_best_that_keeps_most(plans, table, wanted):
    plan = picked(plans, **wanted)
    found = [n for n in neighbours(plan, table) if n.decision == "mesh"]
    assert len({n.plan.axes for n in found}) == len(found) > 3
    for neighbour in found:
        other = neighbour.plan
        moved = [axis for axis in {*plan.sizes, *other.sizes} if plan.size(axis) != other.size(axis)]
        ratio = max(plan.size(axis) / other.size(axis) for axis in moved)
        assert len(moved) == 2 and (ratio == 2 or {plan.size(a) for a in moved} == {other.size(a) for a in moved})
        alike = [p for p in plans if p.axes == other.axes]
        kept = min(len(changed(normal(plan), p) - {"microbatches"}) for p in alike)
        assert len(changed(normal(plan), other) - {"microbatches"}) == kept
        best = min(
            estimate_plan(p, table).value_s for p in alike if len(changed(normal(plan), p) - {"microbatches"}) == kept
        )
        assert math.isclose(neighbour.value_s, best, rel_tol=1e-9)      # of this small model everything fits


def test_whether_they_fit_is_corrected_by_what_is_known(plans, table, machine):
    plan = picked(plans, **CASES[0])
    smallest = min(n.total_bytes for n in neighbours(plan, table) if n.decision != "mesh")
    ratio = machine.device_hbm_bytes / smallest / (1 + MEMORY_MARGIN)
    assert any(n.fits for n in neighbours(plan, table, ratio * 0.999) if n.decision != "mesh")
    assert not any(n.fits for n in neighbours(plan, table, ratio * 1.001) if n.decision != "mesh")


def test_an_edited_plan_has_neighbours_too(plans, table):
    plan = picked(plans, **CASES[0])
    (chunks,) = [n for n in neighbours(replace(plan, loss_chunks=8), table) if n.decision == "loss_chunks"]
    assert chunks.plan == plan
    # what says nothing on a mesh makes no difference
    useless = replace(plan, sequence_sharding=False, zero1=True, context_attention="ulysses")
    assert normal(useless) == plan and neighbours(useless, table) == neighbours(plan, table)
