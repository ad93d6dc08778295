"""Rates and starts of groups of GPUs, by hand."""

import dataclasses
import math

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds, start
from jaxplan.machine.placement import Placement, place
from jaxplan.machine.tiers import Segment, members_within


def over(machine, inside, outside, stride=1):
    """A group of `inside` chips of each of `outside` neighbouring domains (or of every `stride`-th)."""
    domain, domains = machine.domain_chips, machine.chips // machine.domain_chips
    sizes = {"tensor": stride, "data": inside * outside, "stage": machine.chips // (inside * outside * stride)}
    rest = domains // outside // stride
    factors = {"tensor": (1, stride), "data": (inside, outside), "stage": (domain // inside, rest)}
    return Placement(machine, sizes, factors).links("data")


@pytest.mark.parametrize(("inside", "rate"), [(1, 50e9), (2, 100e9), (4, 200e9), (8, 400e9)])
def test_rails(inside, rate):
    """d members of a host have d NICs of 50 GB/s."""
    found = over(catalogue.machine("16x8", "h100"), inside, 16)
    assert found.bytes_per_s == found.all_gather_bytes_per_s == found.all_reduce_bytes_per_s == pytest.approx(rate)


def test_rails_are_capped_by_nvlink():
    """DGX B300: 8 x 100 GB/s of NICs; H800's NVLink is 200 GB/s, under the 400 of its NICs."""
    assert over(catalogue.machine("4x8", "b300"), 8, 4).bytes_per_s == pytest.approx(800e9)
    assert over(catalogue.machine("4x8", "h800"), 8, 4).bytes_per_s == pytest.approx(200e9)


def test_only_what_leaves_a_host_is_exchanged_over_its_nics():
    """64 experts over 8 hosts: 7/8 of a device's bytes leave its host (DeepSpeed-MoE and others count so)."""
    found = over(catalogue.machine("8x8", "h100"), 8, 8)
    exchange_s = 63 / 64 / found.all_to_all_bytes_per_s  # for one byte of a device
    assert exchange_s == pytest.approx(7 / 8 / 50e9)


def test_exchange_as_the_maintainers_of_nccl_count():
    """NVIDIA/nccl-tests issue 130: over N nodes a bus bandwidth of N / (N - 1) of the network's a GPU."""
    for hosts in (2, 4, 16):
        found = over(catalogue.machine(f"{hosts}x8", "h100"), 8, hosts)
        n = 8 * hosts
        whole = n / (n - 1) * found.all_to_all_bytes_per_s  # their (n - 1) / n counts a device's own part as moved
        assert (n - 1) / n * whole == pytest.approx((n - 1) / n * hosts / (hosts - 1) * 50e9)


def test_start_of_an_exchange():
    """128 bytes between 8 H20 took 10.6 us (deepseek-ai/DeepEP issue 303), the same NVLink: 8.4 + 2.24."""
    inside = place(catalogue.machine("1x8", "h100"), {"data": 1, "fsdp": 1, "tensor": 8}).links("tensor")
    assert start("all-to-all", inside) == pytest.approx(10.6e-6, rel=0.01)
    machine = catalogue.machine("8x8", "h100")
    expected = start("all-to-all", inside) + 7 * machine.dcn_hop_latency_s
    assert start("all-to-all", over(machine, 8, 8)) == pytest.approx(expected)


def test_small_sums_of_two_hosts():
    """46 to 48 us for 4 to 512 bytes over 2 hosts of 8 H20 (NVIDIA/nccl issue 1244), the same NVLink and NICs."""
    found = over(catalogue.machine("2x8", "h100"), 8, 2)
    assert seconds("all-reduce", 512, found) == pytest.approx(47e-6, rel=0.2)


def test_scatters_fall_with_the_number_of_hosts():
    """360, 345, 320, 300, 280, 260 GB/s of 4, 8, ... 128 hosts of 8 H100 (NVIDIA/nccl issue 1229; size not stated:
    8 GiB is taken, the largest of the usual sweep). A tree's start would leave 364 throughout."""
    published = [360, 345, 320, 300, 280, 260]
    found = []
    for hosts in (4, 8, 16, 32, 64, 128):
        links = over(catalogue.machine(f"{hosts}x8", "h100"), 8, hosts).achieved()
        found.append((links.size - 1) / links.size * 2**33 / float(seconds("reduce-scatter", 2**33, links)) / 1e9)
    assert found == sorted(found, reverse=True)
    assert found == pytest.approx(published, rel=0.17)


def test_pairs_in_a_full_mesh():
    """MI300X: 7 links of 64 GB/s, one to each peer: a group of n has n - 1."""
    machine = catalogue.machine("1x8", "mi300x")
    for n in (2, 4, 8):
        found = place(machine, {"data": 1, "fsdp": 8 // n, "tensor": n}).links("tensor")
        assert found.bytes_per_s == pytest.approx((n - 1) * 64e9)
        assert found.permute_bytes_per_s == 64e9  # one message takes one link


@pytest.mark.parametrize(
    ("chip", "n", "ideal", "reached"),
    [
        ("h200", 2, 450e9, 0.803 * 450e9),  # a ring of two is as good
        ("h200", 4, 1.5 * 450e9, 0.612 * 1.5 * 450e9),
        ("h200", 8, 1.75 * 450e9, 482e9),
        ("a100-80", 8, 300e9, 234.9e9),  # NVSwitch of the second generation does not add
        ("b200", 4, 900e9, 682.2e9),  # 1.5 x 0.472 is less than the ring's 0.758
    ],
)
def test_the_switch_adds_where_that_is_faster(chip, n, ideal, reached):
    links = place(catalogue.machine("1x8", chip), {"data": 1, "fsdp": 8 // n, "tensor": n}).links("tensor")
    assert links.all_reduce_bytes_per_s == pytest.approx(ideal)
    assert links.achieved().all_reduce_bytes_per_s == pytest.approx(reached, rel=2e-3)
    assert links.all_gather_bytes_per_s == links.bytes_per_s  # a gather has nothing to add


def test_the_sum_in_a_switch_moves_each_tensor_once():
    """S bytes at 450 GB/s each way, whatever the size of the group: S / 450e9 (Klenk et al. 2020)."""
    for n in (4, 8):
        links = place(catalogue.machine("1x8", "h200"), {"data": 1, "fsdp": 8 // n, "tensor": n}).links("tensor")
        free = dataclasses.replace(links, all_reduce_latency_s=1e-30, latency_s=0.0)
        assert seconds("all-reduce", 450e9, free) == pytest.approx(1.0)


def test_starts_of_rings_and_trees():
    """NCCL counts n - h steps inside and h - 1 outside a pass; a tree goes up and down (src/graph/tuning.cc)."""
    machine = catalogue.machine("64x8", "h100")
    hop, dcn, launch = machine.chip.hop_latency_s, machine.dcn_hop_latency_s, machine.chip.launch_latency_s
    whole, pair = over(machine, 8, 64), over(machine, 1, 2)
    ring = 448 * hop + 63 * dcn
    assert start("all-gather", whole) == pytest.approx(launch + ring)
    # up and down a tree is 2 (7 + 6) steps, less than the one pass that a reduce-scatter needs
    assert start("all-reduce", whole) == pytest.approx(launch + ring)
    assert start("all-reduce", pair) == pytest.approx(launch + 2 * dcn)
    assert start("collective-permute", whole) == pytest.approx(launch + dcn)
    inside = place(machine, {"data": 64, "fsdp": 1, "tensor": 8}).links("tensor")
    assert start("all-reduce", inside) == pytest.approx(launch + 14 * hop)


@pytest.mark.parametrize(
    ("segments", "block", "members"),
    [
        ((Segment(16, 1, 16),), 4, 4),
        ((Segment(4, 4, 16),), 4, 1),
        ((Segment(8, 2, 16),), 4, 2),
        ((Segment(2, 1, 16), Segment(2, 8, 16)), 4, 2),
        ((), 4, 1),
    ],
)
def test_members_in_a_part_of_the_network(segments, block, members):
    assert members_within(segments, block) == members


def test_oversubscribed_network():
    """Llama 3 (arXiv 2407.21783, section 3.3.1): 384 hosts of 8 have 50 GB/s a GPU, 1/7 of it to other parts."""
    machine = catalogue.machine("768x8", None, "llama3-h100")
    flat = dataclasses.replace(machine, dcn_oversubscription=1.0)
    # a group of one chip a host, everywhere: 384 members of it in each part share 384 x 50 / 7 GB/s
    assert over(machine, 1, 768).bytes_per_s == over(flat, 1, 768).bytes_per_s == pytest.approx(50e9)
    # of two hosts in two parts: each byte of its ring goes through the thin part
    far = over(machine, 1, 2, stride=384)
    assert far.bytes_per_s == far.permute_bytes_per_s == far.all_to_all_bytes_per_s == pytest.approx(50e9 / 7)
    # inside a part nothing changes
    assert over(machine, 8, 64) == over(flat, 8, 64)
    # of an all-to-all of everything half leaves its part
    exchange_s = 6143 / 6144 / over(machine, 8, 768).all_to_all_bytes_per_s
    assert exchange_s == pytest.approx(0.5 / (50e9 / 7))


def test_more_oversubscription_is_never_faster():
    for stride in (1, 96, 384):
        rates = []
        for factor in (1.0, 2.0, 7.0):
            machine = dataclasses.replace(catalogue.machine("768x8", None, "llama3-h100"), dcn_oversubscription=factor)
            rates.append(over(machine, 1, 2, stride).all_to_all_bytes_per_s)
        assert rates == sorted(rates, reverse=True)


def test_bad_figures_are_refused(tmp_path):
    machine = catalogue.machine("2x8", "h100")
    with pytest.raises(ValueError, match="dcn_oversubscription at least 1"):
        dataclasses.replace(machine, dcn_oversubscription=0.5)
    with pytest.raises(ValueError, match="switch_reduce_fraction"):
        dataclasses.replace(catalogue.chip("mi300x"), switch_reduce_fraction=0.5)
    with pytest.raises(InputError, match="unknown machine"):
        catalogue.machine("2x8", None, "llama9")


def test_nvl72_gathers_inside_and_crosses_by_all_its_nics():
    machine = catalogue.machine("36x4", "gb300")
    inside = place(machine, {"data": 2, "fsdp": 72, "tensor": 1})
    assert inside.links("fsdp").bytes_per_s == 900e9 and inside.links("fsdp").medium == "NVLink: 72 chips"
    assert inside.links("data").bytes_per_s == pytest.approx(100e9)  # one NIC of 800 Gb/s
    both = inside.links(("data", "fsdp"))
    assert both.bytes_per_s == 900e9 and math.isclose(both.all_to_all_bytes_per_s, 143 / 72 * 100e9)
