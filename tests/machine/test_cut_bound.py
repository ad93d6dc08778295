"""No collective is faster than the cuts of its machine let its bytes through, counted device by device.

Of a group with a members on one side and b on the other, n in all, at least so much of S bytes crosses to the other
side: a / n S of an all-gather, b / n S of a reduce-scatter (sums are made before they cross), S of an all-reduce,
a b / n S of an all-to-all of S bytes a device. All groups of the mesh axes are at work at once and share the cut.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import coordinates, place

NBYTES = 1e15  # so large that starts do not count
CROSSING = {
    "all-gather": lambda a, b: a / (a + b),
    "reduce-scatter": lambda a, b: b / (a + b),
    "all-reduce": lambda a, b: 1.0,
    "all-to-all": lambda a, b: a * b / (a + b),
}
MACHINES = [
    *[("4x8", "v5e"), ("16x16", "v5e"), ("8x16", "v6e"), ("4x4x4", "v5p"), ("4x4x8", "v5p"), ("2x4x4", "v4")],
    *[("2x2x4", "tpu7x"), ("4x4x4", "tpu7x"), ("4x8", "v3"), ("2x(4x8)", "v5e"), ("4x(2x2x2)", "v5p")],
    *[("8x8", "h100"), ("4x8", "a100-80"), ("4x8", "b300"), ("36x4", "gb200"), ("4x8", "mi300x"), ("4x8", "h800")],
    *[("2x8", "a100-80-pcie"), ("16x1", "gh200")],
]


def cuts(machine):
    """(which canonical devices lie on one side, bytes/s that leave that side) of many cuts."""
    where = np.array([coordinates(machine, i) for i in range(machine.devices)])
    return list(torus_cuts(machine, where) if machine.kind == "tpu" else cluster_cuts(machine, where))


def torus_cuts(machine, where):
    for axis, (length, wraps) in enumerate(zip(machine.shape, machine.wraps, strict=True)):
        ring = wraps and length > 2
        lanes = machine.chips // length  # chips in the cross section, of all slices
        for last in range(length - 1):
            yield where[:, 1 + axis] <= last, lanes * (2 if ring else 1) * machine.chip.link_bytes_per_s
    for corner in {(0,) * len(machine.shape), tuple(n // 2 for n in machine.shape)}:
        ports = sum(_ports(c, n, w) for c, n, w in zip(corner, machine.shape, machine.wraps, strict=True))
        here = (where[:, 1 : 1 + len(corner)] == corner).all(axis=1)
        if machine.slices == 1 and ports:
            yield here, ports * machine.chip.link_bytes_per_s
    for part in range(machine.slices if machine.slices > 1 else 0):
        hosts = machine.hosts // machine.slices
        yield where[:, -1] == part, hosts * machine.dcn_bytes_per_s_per_host


def _ports(position, length, wraps):
    """Links of a chip along one axis."""
    return min(2, length - 1) if wraps and length > 2 else (position > 0) + (position < length - 1)


def cluster_cuts(machine, where):
    chip, nic = machine.chip, machine.dcn_bytes_per_s_per_host / machine.chips_per_host
    links = chip.links if chip.fabric == "mesh" else 1
    for device in (0, machine.devices - 1):
        mine = np.arange(machine.devices) == device
        yield mine, chip.link_bytes_per_s * links + (nic if machine.chips > machine.domain_chips else 0.0)
    domains = machine.chips // machine.domain_chips
    for some in {1, domains // 2} - {0, domains}:
        yield where[:, 1] < some, some * machine.domain_chips * nic


def crossing(side, groups, kind):
    """Bytes that must leave that side, for each byte of the collective."""
    inside = side[groups].sum(axis=1)
    outside = groups.shape[1] - inside
    split = (inside > 0) & (outside > 0)
    return sum(CROSSING[kind](a, b) for a, b in zip(inside[split], outside[split], strict=True))


def splits(devices):
    """Sizes of three mesh axes that multiply up to that many devices."""
    found = [n for n in range(1, devices + 1) if devices % n == 0]
    return [(a, b, devices // a // b) for a in found for b in found if devices // a % b == 0]


@given(data=st.data(), kind=st.sampled_from(sorted(CROSSING)))
@settings(max_examples=300, deadline=None)
def test_never_under_the_cut_bound(data, kind):
    machine = catalogue.machine(*data.draw(st.sampled_from(MACHINES)))
    sizes = dict(zip(("data", "fsdp", "tensor"), data.draw(st.sampled_from(splits(machine.devices))), strict=True))
    axes = data.draw(st.sampled_from([c for n in (1, 2, 3) for c in itertools.combinations(sizes, n)]))
    try:
        placed = place(machine, sizes)
    except ValueError:
        assume(False)
    moving = [i for i, axis in enumerate(sizes) if axis in axes]
    size = math.prod(sizes[axis] for axis in axes)
    assume(size > 1)
    groups = np.moveaxis(placed.order, moving, range(-len(moving), 0)).reshape(-1, size)
    links = placed.links(axes)
    assert links.size == size
    time = float(seconds(kind, NBYTES, links))
    for side, capacity in cuts(machine):
        least = crossing(side, groups, kind) * NBYTES / capacity
        assert time >= least * (1 - 1e-6), (machine.name, sizes, axes, links.medium, time / least)


def test_the_bound_is_reached_where_it_can_be():
    """A closed ring's all-to-all fills the cut through its middle; a group of whole hosts fills all of their NICs."""
    machine = catalogue.machine("16x16", "v5e")
    placed = place(machine, {"data": 1, "fsdp": 16, "tensor": 16})
    groups = np.moveaxis(placed.order, [1], [-1]).reshape(-1, 16)
    bounds = [crossing(side, groups, "all-to-all") / capacity for side, capacity in cuts(machine)]
    assert max(bounds) * NBYTES == pytest.approx(float(seconds("all-to-all", NBYTES, placed.links("fsdp"))), rel=1e-6)
    machine = catalogue.machine("2x8", "h100")
    placed = place(machine, {"data": 1, "fsdp": 16, "tensor": 1})
    bounds = [crossing(side, placed.order.reshape(1, -1), "all-to-all") / capacity for side, capacity in cuts(machine)]
    assert max(bounds) * NBYTES == pytest.approx(float(seconds("all-to-all", NBYTES, placed.links("fsdp"))), rel=1e-6)
