"""The machine and the links of a published run."""

import pytest
from made_runs import run

from jaxplan.validate.layouts import layout_of, sizes_of
from jaxplan.validate.machines import machine_of, nic_bytes_per_s
from jaxplan.validate.models import Unpredictable


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("8x400 Gb/s RoCE per node", (400e9, "node")),
        ("Jean Zay: 4x100 Gb/s Omni-Path per node, NVLink inside the node", (50e9, "node")),
        ("1600 Gb/s RoCE per node", (200e9, "node")),
        ("400 Gb/s per GPU", (50e9, "GPU")),
        ("8 nodes x 8 GPUs, InfiniBand", None),
        (None, None),
    ],
)
def test_networks_in_words(words, expected):
    assert nic_bytes_per_s(words) == expected


def test_the_source_s_network_replaces_the_catalogue_s():
    assert machine_of(run(n_devices=64, interconnect="8x200 Gb/s per node")).dcn_bytes_per_s_per_host == 200e9
    assert machine_of(run(n_devices=64)).dcn_bytes_per_s_per_host == 400e9     # 8 x 400 Gb/s: DGX H100


def test_slices_of_tpus():
    assert machine_of(run(chip="tpu-v5e", n_devices=512, n_slices=2, topology="16x16 per slice")).mesh == "2x(16x16)"
    assert machine_of(run(chip="tpu-v6e", n_devices=512)).slices == 2       # no slice has more than 256 chips
    assert machine_of(run(chip="tpu7x", n_devices=128, topology="4x4x4 chips (2 JAX devices per chip)")).chips == 64


@pytest.mark.parametrize(("chip", "devices"), [("tpu-v5e", 7), ("tpu7x", 3), ("h100", 0), ("abacus", 8)])
def test_machines_that_do_not_exist(chip, devices):
    with pytest.raises(Unpredictable):
        machine_of(run(chip=chip, n_devices=devices))


def test_hosts_as_the_run_had_them():
    """Nodes of 4 of the 8 GPUs have half the host's network; fewer GPUs than a host are one host."""
    half = machine_of(run(n_devices=16, devices_per_node=4))
    assert (half.hosts, half.chips_per_host, half.domain_chips) == (4, 4, 4)
    assert half.dcn_bytes_per_s_per_host == 200e9
    assert machine_of(run(n_devices=4)).hosts == 1
    by_gpu = machine_of(run(n_devices=16, devices_per_node=4, interconnect="400 Gb/s per GPU"))
    assert by_gpu.dcn_bytes_per_s_per_host == 4 * 50e9


def test_slices_that_are_given_are_kept():
    four = machine_of(run(chip="tpu-v5e", n_devices=1024, n_slices=4, topology="16x16 per slice"))
    assert (four.slices, four.devices) == (4, 1024)
    with pytest.raises(Unpredictable, match="slices"):
        machine_of(run(chip="tpu-v5e", n_devices=256, n_slices=3))


def test_groups_on_hosts():
    """Tensor ranks fill a host: a shard's group has one NIC of 50 GB/s; alone it has all eight, 400 GB/s."""
    row = run(n_devices=64, fsdp=8, tp=8)
    found = layout_of(row, machine_of(row))
    assert (found.tensor_group.size, found.tensor_group.network) == (8, 0)
    assert found.tensor_group.bytes_per_s == 450e9      # NVLink 4, one direction
    assert (found.fsdp_group.size, found.fsdp_group.bytes_per_s, found.fsdp_group.network) == (8, 50e9, 1)
    row = run(n_devices=64, fsdp=64)
    assert layout_of(row, machine_of(row)).fsdp_group.bytes_per_s == 400e9


def test_context_ranks_store_weights_only_where_weights_are_in_parts():
    row = run(n_devices=16, dp=8, fsdp=1, cp=2)
    assert layout_of(row, machine_of(row)).fsdp_group.size == 1
    row = run(n_devices=16, fsdp=8, cp=2)
    assert layout_of(row, machine_of(row)).fsdp_group.size == 16


def test_axes_that_the_source_leaves_out_are_made_up():
    assert sizes_of(run(n_devices=64, dp=None, fsdp=None, tp=8)).fsdp == 8
    assert sizes_of(run(n_devices=64, dp=None, fsdp=4, tp=8)).data == 2
    assert sizes_of(run(n_devices=64, dp=1, fsdp=4, tp=8)).devices == 32


def test_microbatches():
    row = run(n_devices=8, global_batch=64, micro_batch=2)
    found = layout_of(row, machine_of(row))
    assert (found.micro_batch, found.microbatches, found.tokens) == (2, 4, 2 * 8192)
    row = run(n_devices=8, global_batch=64, micro_batch=None, grad_accum=2)
    assert layout_of(row, machine_of(row)).micro_batch == 4


def test_a_mesh_without_a_place_on_the_torus_still_has_links():
    row = run(chip="tpu-v5p", n_devices=64, fsdp=64, topology="4x4x4")
    placed = layout_of(row, machine_of(row)).fsdp_group
    odd = run(chip="tpu-v5p", n_devices=64, fsdp=21, tp=3, topology="4x4x4")
    found = layout_of(odd, machine_of(odd))
    assert found.fsdp_group.size == 21 and found.fsdp_group.bytes_per_s == placed.bytes_per_s


@pytest.mark.parametrize("missing", ["seq_len", "global_batch"])
def test_what_is_missing_is_named(missing):
    row = run(**{missing: None})
    with pytest.raises(Unpredictable, match=missing):
        layout_of(row, machine_of(row))
