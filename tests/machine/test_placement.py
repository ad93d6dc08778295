"""Mesh axes on physical links: orders that are permutations, neighbours that are neighbours, the right
rings."""

import itertools
import math

import numpy as np
import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.placement import CHATTIEST_FIRST, Placement, coordinates, lengths, place

MACHINES = [
    ("8x16", "v5e"),
    ("16x16", "v6e"),
    ("4x4x8", "v5p"),
    ("2x4x4", "v4"),
    ("2x2x2", "tpu7x"),
    ("16x8", "h100"),
]
MACHINES += [("18x4", "gb200"), ("4x4x12", "v5p"), ("3x8", "h100")]
MACHINES += [("2x(4x8)", "v5e"), ("3x(2x2x2)", "v5p"), ("2x(2x2x1)", "tpu7x"), ("2x(4x8)", "h100")]


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


def test_slices_are_the_outermost_level():
    machine = catalogue.machine("2x(4x8)", "v5e")
    assert lengths(machine) == (1, 4, 8, 2)
    assert coordinates(machine, 31) == (0, 3, 7, 0) and coordinates(machine, 32) == (0, 0, 0, 1)
    assert lengths(catalogue.machine("4x8", "v5e")) == (1, 4, 8)


@pytest.mark.parametrize(
    ("mesh", "chip", "sizes", "crossing"),
    [
        ("2x(8x16)", "v5e", {"data": 2, "fsdp": 16, "tensor": 8}, {"data": 2}),
        ("2x(8x16)", "v5e", {"data": 4, "fsdp": 8, "tensor": 8}, {"data": 2}),
        ("2x(8x16)", "v5e", {"stage": 2, "data": 2, "fsdp": 8, "tensor": 8}, {"stage": 2}),
        # a whole ring for tensor would leave it nothing but the other slice
        ("2x(8x16)", "v5e", {"data": 8, "fsdp": 1, "tensor": 32}, {"data": 2}),
        ("4x(4x4)", "v5e", {"stage": 2, "data": 2, "fsdp": 4, "tensor": 4}, {"stage": 2, "data": 2}),
        ("2x(4x4x4)", "v5p", {"data": 1, "fsdp": 8, "expert": 4, "context": 2, "tensor": 2}, {"fsdp": 2}),
        ("2x(4x4x4)", "v5p", {"data": 1, "fsdp": 1, "expert": 16, "tensor": 8}, {"expert": 2}),
        ("2x(4x4x4)", "v5p", {"data": 1, "fsdp": 1, "tensor": 64, "group": 2}, {"tensor": 2}),
        # no other axis has a factor of 3
        ("3x(2x2x2)", "v5p", {"data": 4, "fsdp": 2, "tensor": 3}, {"tensor": 3}),
        ("2x(2x2x1)", "tpu7x", {"data": 2, "fsdp": 4, "tensor": 2}, {"data": 2}),
    ],
)
def test_the_least_chatty_axes_cross_slices(mesh, chip, sizes, crossing):
    placed = place(catalogue.machine(mesh, chip), sizes)
    assert {axis: f[-1] for axis, f in placed.factors.items() if f[-1] > 1} == crossing
    for axis in sizes:
        assert placed.links(axis).crosses_network == (axis in crossing), axis
        if axis in crossing:
            assert placed.describe(axis).endswith(f"DCN: {crossing[axis]} slices")


def every_placement(machine, sizes):
    """All of them, by trying every combination of factors."""

    def factors(size, levels):
        ways = itertools.product(*([n for n in range(1, length + 1) if length % n == 0] for length in levels))
        return [way for way in ways if math.prod(way) == size]

    levels = lengths(machine)
    for chosen in itertools.product(*(factors(size, levels) for size in sizes.values())):
        if all(math.prod(f[i] for f in chosen) == n for i, n in enumerate(levels)):
            yield Placement(machine, sizes, dict(zip(sizes, chosen, strict=True)))


def quality(placed):
    """What a placement is judged by, as one tuple: more is better."""
    machine, chatty = placed.machine, [axis for axis in CHATTIEST_FIRST if placed.sizes.get(axis, 1) > 1]
    torus = range(1, 1 + len(machine.shape)) if machine.kind == "tpu" else ()
    cuts = [sum(f[level] > 1 for f in placed.factors.values()) for level in torus]
    found = [placed.links(axis) for axis in chatty]
    slices = tuple(-placed.factors[axis][-1] for axis in chatty) if machine.slices > 1 else ()
    return (
        slices,
        -sum(n - 1 for n in cuts if n > 1),
        tuple((one.bytes_per_s, not one.crosses_network) for one in found),
        tuple(-one.latency_s for one in found),
    )


@pytest.mark.parametrize(
    ("mesh", "chip"),
    [("4x8", "v5e"), ("2x2x4", "v5p"), ("2x(2x4)", "v5e"), ("4x(2x2)", "v6e"), ("2x2x1", "tpu7x"), ("3x8", "h100")],
)
def test_no_other_placement_is_better(mesh, chip):
    machine = catalogue.machine(mesh, chip)
    for three in itertools.islice(meshes(machine.devices), 0, None, 2):
        for part in (n for n in (2, 3) if three["data"] % n == 0):
            sizes = {"stage": part, **three, "data": three["data"] // part}
            best = max(map(quality, every_placement(machine, sizes)))
            assert quality(place(machine, sizes)) == best, sizes


def test_groups_of_query_heads_are_neighbours():
    placed = place(catalogue.machine("2x8", "h100"), {"data": 2, "fsdp": 1, "tensor": 4, "group": 2})
    assert placed.order[0, 0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_parts_of_a_group_over_slices():
    placed = place(catalogue.machine("2x(8x16)", "v5e"), {"data": 4, "fsdp": 8, "tensor": 8})
    whole, inside, network = (placed.links("data", part) for part in ("whole", "slice", "network"))
    assert (whole.size, inside.size, network.size) == (4, 2, 2)
    assert whole.crosses_network and network.crosses_network and not inside.crosses_network
    assert network.medium == "DCN: 2 slices" and "DCN" not in inside.medium
    assert placed.links("tensor", "slice") == placed.links("tensor")
    assert placed.links("tensor", "network").size == 1  # it stays at home
    one = place(catalogue.machine("8x16", "v5e"), {"data": 4, "fsdp": 4, "tensor": 8})
    assert one.links("data", "slice") == one.links("data")
