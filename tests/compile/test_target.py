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
    ("mesh", "chip"),
    [
        *(("2x4", "v5e"), ("2x2x4", "v4"), ("2x2x4", "v5p"), ("2x2x1", "tpu7x")),
        *(("2x(2x4)", "v5e"), ("3x(2x2x1)", "tpu7x")),
    ],
)
def test_tpu_devices_stand_where_the_placement_says(mesh, chip):
    machine, table = device_table(mesh, chip, "tpu")
    assert len(table) == machine.devices
    inside = machine.devices // machine.slices
    for index, (number, place_, core, slice_) in enumerate(table):
        # ids of one slice count from 0, ids of several from 100,000 times the slice's number, from 1
        assert number == (index if machine.slices == 1 else (index // inside + 1) * 100_000 + index % inside)
        expected = coordinates(machine, index)
        found = (core, *place_[: len(machine.shape)], slice_)
        assert found == (expected if machine.slices > 1 else (*expected, 0))


@pytest.mark.compiler
@pytest.mark.skipif(not available("tpu").ok, reason="libtpu is not installed")
def test_groups_over_slices_are_what_the_placement_says():
    """Two slices of 2x4, `data` over them: the compiler exchanges over the data-centre network between the devices that
    the placement gives to each group, told by their ids; in a slice it numbers that slice's partitions only."""
    machine, table = device_table("2x(2x4)", "v5e", "tpu")
    sizes = {"data": 2, "tensor": 8}
    asked = {"machine": machine.to_json(), "sizes": sizes}
    here = environment(8).with_variables(PYTHONPATH=str(__file__).rpartition("/")[0])
    outcome = run(Job("target_jobs:across_slices", asked, here))
    assert outcome.ok, outcome.message
    partitions, sent, groups = outcome.value
    sent, ids = dict(sent), [row[0] for row in table]
    assert partitions == 8 and set(sent) == {"ALL_REDUCE", "ALL_TO_ALL"}
    assert sent["ALL_REDUCE"] == "{1,2}x{0:7}"      # slices, counted from 1, x devices of each
    expected = {tuple(ids[index] for index in pair) for pair in place(machine, sizes).order.T}
    found = {tuple(map(int, pair.split(","))) for pair in sent["ALL_TO_ALL"].strip("{}").split("},{")}
    assert found == expected
    assert set(groups) == {"{{0,1,2,3,4,5,6,7}}"}


class Device:
    """A TPU device as libtpu describes it."""

    def __init__(self, coords, slice_index=None, core=0):
        self.coords, self.slice_index, self.core_on_chip = coords, slice_index, core


@pytest.mark.parametrize(
    ("mesh", "devices", "order"),
    [
        ("1x1", [Device([0, 0, 0])], [0]),
        ("2x2", [Device([x, y, 0]) for x in (1, 0) for y in (0, 1)], [2, 0, 3, 1]),
        ("2x(2x2)", [Device([x, y, 0], s) for s in (1, 0) for y in (0, 1) for x in (0, 1)], [4, 5, 6, 7, 0, 1, 2, 3]),
    ],
)
def test_tpu_devices_are_ordered_by_slice_then_place(monkeypatch, mesh, devices, order):
    topologies = pytest.importorskip("jax.experimental.topologies")
    asked = {}

    def describe(**options):
        asked.update(options)
        return type("Topology", (), {"devices": devices})

    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    machine = catalogue.machine(mesh, "v5e")
    assert target.devices(machine, "tpu") == [devices[i] for i in order]
    assert asked.get("num_slices") == (machine.slices if machine.slices > 1 else None)
    assert asked["topology_name"].endswith(mesh.split("(")[-1].strip(")"))


def test_a_device_outside_the_machine_is_an_error(monkeypatch):
    topologies = pytest.importorskip("jax.experimental.topologies")
    found = type("Topology", (), {"devices": [Device([x, 0, 0], s) for s in (0, 1) for x in (0, 1)]})
    monkeypatch.setattr(topologies, "get_topology_desc", lambda **_: found)
    with pytest.raises(target.TargetError, match=r"slice\) = \(0, 0, 0, 0, 1\)"):
        target.devices(catalogue.machine("2x2", "v5e"), "tpu")


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
