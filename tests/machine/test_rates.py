"""Rates against closed forms and against routing every message by hand."""

import dataclasses
import math

import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.placement import place
from jaxplan.machine.rates import Segment, staged_rate, torus_rate, two_tier_rate

LINK = 45e9  # v5e, one way (scaling book)


def links(mesh, chip, axis="fsdp", **sizes):
    machine = catalogue.machine(mesh, chip)
    full = {"data": 1, "fsdp": 1, "tensor": 1, **sizes}
    return place(machine, full).links(axis)


@pytest.mark.parametrize(
    ("mesh", "sizes", "axis", "rate"),
    [
        ("8x16", {"fsdp": 16, "tensor": 8}, "fsdp", 2 * LINK),  # closed ring: two links in
        ("8x16", {"fsdp": 16, "tensor": 8}, "tensor", LINK),  # line: its end has one
        ("8x16", {"fsdp": 128}, "fsdp", 3 * LINK),  # both axes at once
        ("16x16", {"fsdp": 256}, "fsdp", 4 * LINK),
        ("8x16", {"data": 2, "fsdp": 16, "tensor": 4}, "data", LINK / 4),  # four interleaved groups a link
    ],
)
def test_torus(mesh, sizes, axis, rate):
    assert links(mesh, "v5e", axis, **sizes).bytes_per_s == pytest.approx(rate)


def test_strided_stretch_is_gathered_first():
    """2 (every 4th, line) x 16 (ring): 1/32 -> 1/16 of the result at LINK/4, then 15/16 of it at 2 LINK."""
    seconds = (1 / 16 - 1 / 32) / (LINK / 4) + 15 / 16 / (2 * LINK)
    found = links("8x16", "v5e", "fsdp", fsdp=32, tensor=4).bytes_per_s
    assert found == pytest.approx(31 / 32 / seconds)
    same = torus_rate([(Segment(2, 4, 8), False), (Segment(16, 1, 16), True)], LINK)
    assert found == pytest.approx(same)


def _all_to_all_load(n: int, ring: bool) -> float:
    """The busiest directed link when each of n devices sends 1/n to each other by a shortest way (ties
    halved)."""
    load: dict[tuple[int, int], float] = {}
    for i in range(n):
        for j in range(n):
            forward = (j - i) % n
            ways = [(1, forward), (-1, n - forward)] if ring else [(1 if j > i else -1, abs(j - i))]
            shortest = min(length for _, length in ways)
            chosen = [way for way in ways if way[1] == shortest]
            for step, length in chosen if i != j else ():
                for hop in range(length):
                    here = (i + step * hop) % n
                    key = (here, (here + step) % n)
                    load[key] = load.get(key, 0.0) + 1 / n / len(chosen)
    return max(load.values())


@pytest.mark.parametrize(
    ("mesh", "n", "ring"), [("8x16", 16, True), ("4x8", 8, False), ("4x8", 4, False), ("2x4", 2, False)]
)
def test_all_to_all_is_the_busiest_link(mesh, n, ring):
    axis_sizes = {"fsdp": n, "tensor": catalogue.machine(mesh, "v5e").devices // n}
    machine = catalogue.machine(mesh, "v5e")
    placed = place(machine, {"data": 1, **axis_sizes})
    axis = next(a for a in ("fsdp", "tensor") if placed.sizes[a] == n and f"{n}" in placed.describe(a))
    found = placed.links(axis)
    seconds = (n - 1) / n / found.all_to_all_bytes_per_s  # for one byte a device
    assert seconds == pytest.approx(_all_to_all_load(n, ring) / LINK)


def test_two_tiers():
    # all of a host's 8 NICs of 50 GB/s work for the group
    assert two_tier_rate(8, 16, 450e9, 50e9) == 400e9
    assert two_tier_rate(8, 16, 300e9, 50e9) == 300e9  # capped by NVLink
    assert two_tier_rate(1, 16, 450e9, 50e9) == pytest.approx(50e9)
    assert two_tier_rate(8, 1, 450e9, 50e9) == 450e9


@pytest.mark.parametrize(
    "sizes", [{"fsdp": 128}, {"fsdp": 16, "tensor": 8}, {"data": 4, "fsdp": 8, "tensor": 4}]
)
def test_in_host_bandwidth_never_crosses_hosts(sizes):
    machine = catalogue.machine("16x8", "h100")
    placed = place(machine, {"data": 1, "fsdp": 1, "tensor": 1, **sizes})
    nic = machine.dcn_bytes_per_s_per_host / machine.chips_per_host
    for axis in ("data", "fsdp", ("data", "fsdp"), ("data", "fsdp", "tensor")):
        found = placed.links(axis)
        if not found.crosses_network:
            continue
        inside = math.prod(placed.factors[a][0] for a in ((axis,) if isinstance(axis, str) else axis))
        outside = found.size // inside
        into_host = (outside - 1) / outside  # of one gathered byte
        seconds = (found.size - 1) / found.size / found.bytes_per_s
        assert seconds * inside * nic >= into_host * (1 - 1e-9)
        assert found.permute_bytes_per_s <= nic
        leaves = (
            (found.size - inside)
            / found.size
            / ((found.size - 1) / found.size / found.all_to_all_bytes_per_s)
        )
        assert leaves <= nic * (1 + 1e-9)


def test_nvl72_is_one_domain():
    placed = place(catalogue.machine("18x4", "gb200"), {"data": 1, "fsdp": 1, "tensor": 72})
    assert placed.links("tensor").bytes_per_s == 900e9 and not placed.links("tensor").crosses_network
    two = place(catalogue.machine("36x4", "gb200"), {"data": 2, "fsdp": 72, "tensor": 1})
    assert two.links("data").crosses_network and not two.links("fsdp").crosses_network


def test_devices_of_a_chip_share_its_links():
    apart = links("4x4x4", "tpu7x", "fsdp", fsdp=64, tensor=2)
    assert apart.bytes_per_s == pytest.approx(6 * 100e9 / 2)
    # with both devices of a chip in the group, all six links work for it
    together = links("4x4x4", "tpu7x", "fsdp", fsdp=128)
    assert together.bytes_per_s == pytest.approx(600e9)


def test_a_full_mesh_gives_a_pair_one_link():
    # MI300X: 7 xGMI links of 64 GB/s, one to each peer (data sheet)
    assert links("1x8", "mi300x", "tensor", fsdp=4, tensor=2).bytes_per_s == 64e9
    assert links("1x8", "mi300x", "tensor", tensor=8).bytes_per_s == 7 * 64e9


def test_gathers_that_are_one_ring():
    """Where the compiler gathers by one ring through both axes, two links a chip work, not three."""
    both = links("8x16", "v5e", "fsdp", fsdp=128)
    assert both.bytes_per_s == pytest.approx(3 * LINK)
    assert both.all_gather_bytes_per_s == both.reduce_scatter_bytes_per_s == pytest.approx(2 * LINK)
    cube = links("4x4x8", "v5p", "fsdp", fsdp=128)
    assert cube.all_gather_bytes_per_s == cube.bytes_per_s == pytest.approx(6 * 90e9)


@pytest.mark.parametrize(
    ("chip", "mesh", "gigabits"),
    [
        # Google Cloud documentation: v5e 6.4 Tb/s and v6e 25.6 Tb/s a pod of 256 chips, v5p 50 Gb/s a chip
        ("v5e", "16x16", 6400 / 256),
        ("v6e", "16x16", 25600 / 256),
        ("v5p", "4x4x4", 50),
        ("tpu7x", "4x4x4", 2 * 200 / 4),  # two NICs a host of four chips
    ],
)
def test_data_centre_network_of_a_chip(chip, mesh, gigabits):
    machine = catalogue.machine(mesh, chip)
    assert machine.dcn_bytes_per_s_per_host / machine.chips_per_host == pytest.approx(gigabits * 1e9 / 8)


DCN = 25e9 / 8  # v5e: of a host's 25 GB/s, for each of its 8 chips


def test_an_axis_over_slices_alone_has_the_network_of_a_chip():
    found = links("2x(8x16)", "v5e", "data", data=2, fsdp=16, tensor=8)
    assert (found.size, found.crosses_network, found.medium) == (2, True, "DCN: 2 slices")
    for rate in ("bytes_per_s", "all_gather_bytes_per_s", "reduce_scatter_bytes_per_s", "permute_bytes_per_s"):
        assert getattr(found, rate) == pytest.approx(DCN)
    # half of its bytes leave a device, by its share of the network
    assert found.all_to_all_bytes_per_s == pytest.approx(DCN)


@pytest.mark.parametrize(
    ("mesh", "sizes", "axis", "inside", "slices", "ici"),
    [
        ("2x(8x16)", {"fsdp": 256}, "fsdp", 128, 2, 3 * LINK),  # both axes of a slice at once
        ("2x(8x16)", {"fsdp": 32, "tensor": 8}, "fsdp", 16, 2, 2 * LINK),  # its ring
        ("4x(4x8)", {"fsdp": 16, "tensor": 8}, "fsdp", 4, 4, LINK),
    ],
)
def test_over_slices_one_stage_after_the_other(mesh, sizes, axis, inside, slices, ici):
    """S bytes gathered: each device fetches its part from the other slices, then all parts go round in the slice."""
    found = links(mesh, "v5e", axis, **sizes)
    n = inside * slices
    seconds = (slices - 1) / n / DCN + (n - slices) / n / ici  # for one byte of result
    assert found.size == n and found.crosses_network
    assert (n - 1) / n / found.bytes_per_s == pytest.approx(seconds)


def test_stages_at_their_extremes():
    assert staged_rate(1, 4, math.inf, DCN) == pytest.approx(DCN)
    assert staged_rate(16, 1, LINK, DCN) == pytest.approx(LINK)
    # a network that costs nothing leaves the slice's own stage
    assert staged_rate(8, 2, LINK, math.inf) == pytest.approx(15 / 16 / (7 / 8) * LINK)


def test_hops_between_slices_are_counted():
    machine = dataclasses.replace(catalogue.machine("4x(2x4)", "v5e"), dcn_hop_latency_s=1e-4)
    placed = place(machine, {"data": 4, "fsdp": 1, "tensor": 8})
    assert placed.links("data").latency_s == pytest.approx(machine.chip.launch_latency_s + 2 * 1e-4)
    both = placed.links(("data", "tensor"))
    assert both.latency_s == pytest.approx(placed.links("data").latency_s + placed.links("tensor").latency_s)


def test_a_measured_fraction_belongs_to_what_is_slowest():
    machine = catalogue.machine("2x(8x16)", "v5e")
    placed = place(machine, {"data": 2, "fsdp": 16, "tensor": 8})
    assert placed.links("data").fraction == machine.dcn_fraction < 1
    # 128 chips have 400 GB/s of network: their own links are the slower stage
    whole = place(machine, {"data": 1, "fsdp": 256, "tensor": 1}).links("fsdp")
    assert whole.fraction == machine.chip.collective_fraction


@pytest.mark.parametrize(("mesh", "chip"), [("2x(4x4x4)", "v5p"), ("2x(2x2x1)", "tpu7x"), ("3x(2x4)", "v6e")])
def test_no_more_enters_a_slice_than_its_network_lets_in(mesh, chip):
    machine = catalogue.machine(mesh, chip)
    tensor = 4
    sizes = {"data": machine.slices, "fsdp": machine.devices // machine.slices // tensor, "tensor": tensor}
    placed = place(machine, sizes)
    host = machine.dcn_bytes_per_s_per_host / machine.devices_per_host
    for axes in ("data", ("data", "fsdp"), ("data", "tensor"), tuple(sizes)):
        found = placed.links(axes)
        inside = found.size // machine.slices
        entering = (machine.slices - 1) / machine.slices  # of one gathered byte
        for rate in (found.bytes_per_s, found.all_gather_bytes_per_s, found.reduce_scatter_bytes_per_s):
            assert (found.size - 1) / found.size / rate * inside * host >= entering * (1 - 1e-9)
