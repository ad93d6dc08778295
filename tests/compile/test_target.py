"""From a machine to its compiler's devices, and how larger machines are partitioned on this host."""

import dataclasses
import json
import math

import numpy as np
import pytest
from tiny_plans import tiny_plan

from jaxplan.compile import target
from jaxplan.compile.environment import available, environment
from jaxplan.compile.worker import Job, run
from jaxplan.machine import catalogue
from jaxplan.machine.placement import coordinates, place
from jaxplan.plan.decisions import plan_from


def device_table(mesh, chip, platform):
    """(id, coordinates) of a machine's devices in canonical order, as its compiler says, from a worker."""
    machine = catalogue.machine(mesh, chip, None)
    asked = {"machine": machine.to_json(), "platform": platform}
    here = environment(8).with_variables(PYTHONPATH=str(__file__).rpartition("/")[0])
    outcome = run(Job("target_jobs:device_table", asked, here))
    assert outcome.ok, outcome.message
    return machine, outcome.value


@pytest.mark.compiler
@pytest.mark.skipif(not available("tpu").ok, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("mesh", "chip"), [("2x4", "v5e"), ("2x2x4", "v4"), ("2x2x4", "v5p"), ("2x2x1", "tpu7x")]
)
def test_tpu_devices_stand_where_the_placement_says(mesh, chip):
    machine, table = device_table(mesh, chip, "tpu")
    assert len(table) == machine.devices
    for index, (_, core, place_) in enumerate(table):
        expected = coordinates(machine, index)
        assert (core, *place_[: len(machine.shape)]) == expected


@pytest.mark.compiler
@pytest.mark.skipif(not available("cuda").ok, reason="the CUDA plugin is not installed")
def test_gpus_are_counted_host_by_host():
    machine, table = device_table("2x8", "h100", "cuda")
    assert [row[0] for row in table] == list(range(16)) and machine.hosts == 2


@pytest.mark.parametrize("level", ["0", "3"])
def test_the_partitioners_warning_is_seen_whatever_the_users_log_level(monkeypatch, level):
    """x (16, 16, 16) from P(y, None, x) to P(None, (x, y), None) on a 4 x 2 mesh warns once (xla#15207)."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    here = environment(8).with_variables(PYTHONPATH=str(__file__).rpartition("/")[0])
    outcome = run(Job("target_jobs:involuntary_rematerialization", {}, here))
    assert outcome.ok, outcome.message
    assert [row["kind"] for row in outcome.value] == ["full rematerialization"]


def test_host_devices_make_a_mesh_in_the_placements_order():
    plan = tiny_plan()
    order = place(plan.machine, plan.sizes).order
    mesh = target.mesh(plan.machine, plan.sizes, "cpu", order)
    assert dict(mesh.shape) == plan.sizes
    assert [[d.id for d in row.flat] for row in mesh.devices] == [list(map(int, row.flat)) for row in order]
    assert {kind.name for kind in mesh.axis_types} == {"Auto"}


def test_an_order_of_another_size_is_refused():
    plan = tiny_plan()
    with pytest.raises(ValueError, match="expected 8 indices, got 4"):
        target.mesh(plan.machine, plan.sizes, "cpu", np.arange(4))


def test_too_few_devices_are_said(monkeypatch):
    monkeypatch.setattr(target, "_host_devices", lambda machine: [1, 2])
    with pytest.raises(target.TargetError, match="knows 2 devices, expected 8"):
        target.devices(tiny_plan().machine, "cpu")


def large_plan(sizes, chip="h100", mesh="512x8", **more):
    return tiny_plan(mesh, chip, sizes, "cudnn", batch=2 * math.prod(sizes[:2]), **more)


def test_up_to_2048_devices_the_host_partitions_the_plan_itself():
    view = target.host_view(tiny_plan(), cuda_available=True)
    assert view is not None and view.platform == "cpu" and view.note == ""
    assert view.plan.attention == "blockwise"
    assert view.plan.sizes == tiny_plan().sizes and view.plan.compiler_flags == {}


def test_beyond_the_gpu_compiler_partitions_gpu_machines():
    view = target.host_view(large_plan((512, 2, 4)), cuda_available=True)
    assert view is not None and view.platform == "cuda" and "GPU compiler" in view.note
    assert view.plan == large_plan((512, 2, 4))


def test_without_it_replicas_are_left_out():
    view = target.host_view(large_plan((512, 2, 4)), cuda_available=False)
    assert view is not None and (view.platform, view.shrunk) == ("cpu", 2) and "divided by 2" in view.note
    assert view.plan.sizes == {"data": 256, "fsdp": 2, "tensor": 4} and view.plan.machine.devices == 2048
    assert view.plan.local_sequences == large_plan((512, 2, 4)).local_sequences
    assert plan_from(json.loads(json.dumps(view.plan.decisions()))) == view.plan


def test_what_is_not_replicated_cannot_be_left_out():
    assert target.host_view(large_plan((1, 1024, 4)), cuda_available=False) is None
    sharded = dataclasses.replace(large_plan((512, 2, 4)), zero1=True)
    assert target.host_view(sharded, cuda_available=False) is None


def test_two_devices_a_chip_shrink_by_chips():
    plan = tiny_plan("16x16x12", "tpu7x", (1536, 2, 2), batch=2 * 3072)
    view = target.host_view(plan, cuda_available=True)
    assert view is not None and view.plan.machine.devices == 2048 and view.plan.sizes["data"] == 512


@pytest.mark.parametrize(
    ("devices", "replicas", "expected"),
    [(4096, 512, 2), (6144, 1536, 3), (16384, 8, 8), (16384, 4, None), (10000, 5, 5), (4096, 3, None)],
)
def test_the_smallest_factor_that_brings_it_down(devices, replicas, expected):
    assert target.shrink_factor(devices, replicas) == expected
