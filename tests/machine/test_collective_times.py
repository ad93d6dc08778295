"""Times of collectives: laws that must hold everywhere."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan.machine import catalogue
from jaxplan.machine.collectives import KINDS, moved, rate, seconds, start
from jaxplan.machine.links import ALONE, RATES
from jaxplan.machine.placement import Placement, place

GB = 1e9


def named(mesh, name):
    return catalogue.machine(mesh, None, name) if name == "llama3-h100" else catalogue.machine(mesh, name)


GROUPS = [
    place(named(mesh, chip), dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))).links(axes)
    for mesh, chip, sizes in [
        ("8x16", "v5e", (2, 16, 4)),
        ("16x16", "v6e", (4, 8, 8)),
        ("4x4x8", "v5p", (4, 8, 4)),
        ("2x2x4", "tpu7x", (4, 4, 2)),
        ("16x8", "h100", (4, 8, 4)),
        ("36x4", "gb200", (2, 18, 4)),
        ("4x8", "mi300x", (2, 4, 4)),
        ("2x8", "a100-80-pcie", (2, 2, 4)),
        ("4x8", "v3", (4, 8, 2)),
        ("2x(4x8)", "v5e", (2, 8, 4)),
        ("1024x8", "llama3-h100", (64, 16, 8)),
    ]
    for axes in ("tensor", "fsdp", "data", ("data", "fsdp"), ("data", "fsdp", "tensor"))
]
groups = st.sampled_from(GROUPS)
sizes = st.floats(1, 1e12)


@given(links=groups, nbytes=sizes, more=st.floats(1, 1e3), kind=st.sampled_from(KINDS))
def test_more_bytes_never_take_less(links, nbytes, more, kind):
    few, many = seconds(kind, np.array([nbytes, nbytes * more]), links)
    assert few <= many


@given(links=groups, nbytes=sizes, members=st.integers(2, 4096), kind=st.sampled_from(KINDS))
def test_more_devices_on_the_same_links_never_take_less(links, nbytes, members, kind):
    few = dataclasses.replace(links, size=members)
    many = dataclasses.replace(links, size=members + 1)
    assert seconds(kind, nbytes, few) <= seconds(kind, nbytes, many)


@given(links=groups, nbytes=sizes)
def test_all_reduce_is_between_its_parts_and_their_sum(links, nbytes):
    scatter, gather = (seconds(kind, nbytes, links) for kind in ("reduce-scatter", "all-gather"))
    reduce = seconds("all-reduce", nbytes, links)
    assert scatter <= reduce <= (scatter + gather) * (1 + 1e-12)


@given(links=groups, nbytes=sizes, kind=st.sampled_from(KINDS))
def test_never_under_the_bandwidth_bound(links, nbytes, kind):
    """Chan et al. 2007, table 1: what each device must at least send, at the rate of its links."""
    n = links.size
    least = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1}.get(kind, (n - 1) / n) * nbytes
    fastest = max(links.bytes_per_s, links.all_to_all_bytes_per_s, links.permute_bytes_per_s)
    if kind == "all-reduce" and links.all_reduce_bytes_per_s > links.bytes_per_s:
        least = nbytes  # the switch adds: each sends its tensor once and receives the sum once (Klenk et al. 2020)
    assert seconds(kind, nbytes, links) >= least / fastest * (1 - 1e-12)


@given(links=groups, nbytes=sizes, kind=st.sampled_from(KINDS))
@settings(max_examples=50)
def test_measured_rates_are_never_above_the_data_sheet(links, nbytes, kind):
    assert seconds(kind, nbytes, links.achieved()) >= seconds(kind, nbytes, links)


def test_all_to_all_is_not_priced_as_all_gather():
    """On a ring of n an all-to-all of the same total is a quarter of an all-gather (scaling book,
    sharding.md)."""
    ring = place(catalogue.machine("16x16", "v5e"), {"data": 1, "fsdp": 16, "tensor": 16}).links("fsdp")
    total = 16 * GB
    exchange = seconds("all-to-all", total / 16, ring) - ring.latency_s
    gather = seconds("all-gather", total, ring) - ring.latency_s
    assert exchange / gather == pytest.approx(1 / 4 / (15 / 16))


@given(links=groups, nbytes=sizes, kind=st.sampled_from(KINDS), faster=st.floats(1, 10))
def test_faster_links_never_take_longer(links, nbytes, kind, faster):
    rates = {name: faster * getattr(links, name) for name in RATES}
    assert seconds(kind, nbytes, dataclasses.replace(links, **rates)) <= seconds(kind, nbytes, links)


@given(
    hosts=st.sampled_from([2, 4, 16, 64]),
    d=st.sampled_from([1, 2, 4, 8]),
    chip=st.sampled_from(["a100-80", "h100", "b200", "mi300x"]),
    kind=st.sampled_from(KINDS),
    nbytes=sizes,
)
@settings(max_examples=60, deadline=None)
def test_more_hosts_never_take_less(hosts, d, chip, kind, nbytes):
    """d members a host, in twice as many hosts: the same tier, more of it."""
    times = []
    for n in (hosts, 2 * hosts):
        machine = catalogue.machine(f"{n}x8", chip)
        links = Placement(machine, {"a": n * d, "b": 8 // d}, {"a": (d, n), "b": (8 // d, 1)}).links("a")
        assert links.size == n * d and links.crosses_network
        times.append(seconds(kind, nbytes, links.achieved()))
    assert times[0] <= times[1] * (1 + 1e-12)


@given(links=groups, nbytes=sizes, kind=st.sampled_from(KINDS))
def test_between_a_start_and_two_and_the_line(links, nbytes, kind):
    """min(alpha + 2 x, 2 alpha + x) with two protocols, alpha + x with one."""
    alpha, x = start(kind, links), moved(kind, nbytes, links.size) / rate(kind, links)
    expected = min(alpha + 2 * x, 2 * alpha + x) if links.two_protocols else alpha + x
    assert seconds(kind, nbytes, links) == pytest.approx(float(expected))


def test_nothing_costs_nothing():
    for kind in KINDS:
        assert seconds(kind, 0, GROUPS[0]) == 0
        assert seconds(kind, 1e9, ALONE) == 0
    assert seconds("all-gather", np.ones((3, 2)), GROUPS[0]).shape == (3, 2)


def test_bad_input():
    with pytest.raises(ValueError, match="collective must be one of"):
        seconds("broadcast", 1.0, GROUPS[0])
    with pytest.raises(ValueError, match="negative"):
        seconds("all-gather", -1.0, GROUPS[0])
