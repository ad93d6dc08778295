"""Mesh axes on physical links: orders that are permutations, neighbours that are neighbours, the right
rings."""

import itertools
import math

import numpy as np
import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.placement import Placement, coordinates, lengths, place

MACHINES = [
    ("8x16", "v5e"),
    ("16x16", "v6e"),
    ("4x4x8", "v5p"),
    ("2x4x4", "v4"),
    ("2x2x2", "tpu7x"),
    ("16x8", "h100"),
]
MACHINES += [("18x4", "gb200"), ("4x4x12", "v5p"), ("3x8", "h100")]


def meshes(devices):
    for data in (n for n in range(1, devices + 1) if devices % n == 0):
        for fsdp in (n for n in range(1, devices // data + 1) if devices // data % n == 0):
            yield {"data": data, "fsdp": fsdp, "tensor": devices // data // fsdp}


@pytest.mark.parametrize("mesh_chip", MACHINES)
def test_every_mesh_that_is_placed_uses_every_device_once(mesh_chip):
    machine = catalogue.machine(*mesh_chip)
    for sizes in meshes(machine.devices):
        order = place(machine, sizes).order
        assert order.shape == tuple(sizes.values())
        assert np.array_equal(np.sort(order.ravel()), np.arange(machine.devices)), sizes


@pytest.mark.parametrize("mesh_chip", MACHINES)
def test_groups_lie_where_the_factors_say(mesh_chip):
    """In every group of an axis, the coordinates of a level take as many values as the axis has there."""
    machine = catalogue.machine(*mesh_chip)
    for sizes in itertools.islice(meshes(machine.devices), 0, None, 5):
        placed = place(machine, sizes)
        for position, axis in enumerate(sizes):
            groups = np.moveaxis(placed.order, position, -1).reshape(-1, sizes[axis])
            for group in groups[:3]:
                levels = zip(*(coordinates(machine, int(i)) for i in group), strict=True)
                assert tuple(len(set(level)) for level in levels) == placed.factors[axis], (sizes, axis)


def test_whole_rings_first():
    machine = catalogue.machine("8x16", "v5e")
    placed = place(machine, {"data": 1, "fsdp": 16, "tensor": 8})
    assert placed.factors["fsdp"] == (1, 1, 16) and placed.factors["tensor"] == (1, 8, 1)
    assert "ring of 16" in placed.describe("fsdp") and "line of 8" in placed.describe("tensor")
    # two equal rings: the chattier axis is not split either
    both = place(catalogue.machine("16x16", "v5e"), {"data": 1, "fsdp": 16, "tensor": 16})
    assert "ring of 16" in both.describe("fsdp") and "ring of 16" in both.describe("tensor")


def test_the_chattiest_axis_gets_neighbours():
    placed = place(catalogue.machine("8x16", "v5e"), {"data": 2, "fsdp": 16, "tensor": 4})
    first = [coordinates(placed.machine, int(i)) for i in placed.order[0, 0]]
    assert [x for _, x, _ in first] == [0, 1, 2, 3] and len({y for _, _, y in first}) == 1
    assert "every 4th" in placed.describe("data")


def test_tensor_stays_in_the_nvlink_domain():
    placed = place(catalogue.machine("16x8", "h100"), {"data": 4, "fsdp": 8, "tensor": 4})
    assert placed.factors == {"data": (1, 4), "fsdp": (2, 4), "tensor": (4, 1)}
    assert not placed.links("tensor").crosses_network
    assert placed.links("fsdp").crosses_network
    # tensor alone may leave it: 16 = 8 in the domain x 2
    wide = place(catalogue.machine("16x8", "h100"), {"data": 1, "fsdp": 8, "tensor": 16})
    assert wide.factors["tensor"] == (8, 2)


def test_both_devices_of_a_chip_are_the_innermost_factor():
    placed = place(catalogue.machine("4x4x4", "tpu7x"), {"data": 1, "fsdp": 64, "tensor": 2})
    assert placed.factors["tensor"] == (2, 1, 1, 1)
    assert placed.order[0, 0].tolist() == [0, 1]


def test_sizes_that_do_not_factor_are_an_error():
    with pytest.raises(ValueError, match="has 64 devices"):
        place(catalogue.machine("8x16", "v5e"), {"data": 1, "fsdp": 8, "tensor": 8})
    with pytest.raises(ValueError, match="do not multiply up to 6"):
        Placement(catalogue.machine("2x2", "v5e"), {"a": 6}, {"a": (1, 2, 2)})
    with pytest.raises(ValueError, match="level 1"):
        Placement(catalogue.machine("2x2", "v5e"), {"a": 4}, {"a": (1, 4, 1)})


def test_unknown_axis_is_an_error():
    placed = place(catalogue.machine("2x2", "v5e"), {"data": 1, "fsdp": 4, "tensor": 1})
    with pytest.raises(ValueError, match="not model"):
        placed.links(("model",))
    assert placed.links(("data", "tensor")).size == 1
    assert placed.links(("data", "fsdp")) == placed.links("fsdp")


def test_a_group_over_two_axes_is_one_stretch():
    """data x fsdp on 8x16 beside tensor 1 is the whole slice, however it is cut."""
    machine = catalogue.machine("8x16", "v5e")
    whole = place(machine, {"data": 1, "fsdp": 128, "tensor": 1}).links("fsdp")
    for data in (2, 4, 8, 16):
        placed = place(machine, {"data": data, "fsdp": 128 // data, "tensor": 1})
        assert placed.links(("data", "fsdp")).bytes_per_s == pytest.approx(whole.bytes_per_s)


def test_coordinates_count_the_innermost_level_fastest():
    machine = catalogue.machine("4x4x8", "v5p")
    assert lengths(machine) == (1, 4, 4, 8)
    assert coordinates(machine, 1) == (0, 1, 0, 0)
    assert coordinates(machine, 4 + 2 * 16) == (0, 0, 1, 2)
    assert coordinates(catalogue.machine("16x8", "h100"), 17) == (1, 2)
    assert math.prod(lengths(catalogue.machine("4x4x4", "tpu7x"))) == 128
