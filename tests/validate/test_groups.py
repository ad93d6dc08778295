"""The links under the groups of a run: which of them leave the host, over how many NICs.

DGX H100: 8 GPUs on NVLink at 450 GB/s each, one NIC of 50 GB/s for each. A group's members in one host share its
other members' NICs only with groups that have as many: n members a host move n NICs' bytes.
"""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.validate.layouts import layout_of
from jaxplan.validate.machines import machine_of

NIC, NVLINK = 50e9, 450e9
MOE = LLAMA_8B.model_copy(update={"experts": 64, "top_k": 8, "moe_d_ff": 2048})
NAMES = ("tensor", "context", "fsdp", "expert_fsdp", "data", "expert_data", "expert")


def layout(**changes):
    row = run(**{"fsdp": 1, "model": MOE} | changes)
    return layout_of(row, machine_of(row))


def seen(found, name):
    group = getattr(found, f"{name}_group")
    return group.size, bool(group.network), group.bytes_per_s


def test_groups_of_one_have_no_links():
    found = layout(n_devices=1)
    assert all(getattr(found, f"{name}_group").size == 1 for name in NAMES)


@pytest.mark.parametrize(("tp", "fsdp"), [(1, 64), (2, 32), (4, 16), (8, 8)])
def test_a_host_lends_a_group_the_nics_of_its_members(tp, fsdp):
    found = layout(n_devices=64, tp=tp, fsdp=fsdp)
    assert seen(found, "fsdp") == (fsdp, True, pytest.approx(8 / tp * NIC))
    assert seen(found, "tensor") == (tp, False, NVLINK) if tp > 1 else (1, False, 1.0)


def test_context_ranks_lie_beside_tensor_ranks():
    assert seen(layout(n_devices=8, tp=2, cp=4), "context") == (4, False, NVLINK)
    assert seen(layout(n_devices=16, tp=8, cp=2), "context") == (2, True, NIC)


def test_replicas_of_experts_are_fewer_than_those_of_the_rest():
    """Megatron: 64 data ranks, of which 8 share one set of experts: 8 replicas of those, 64 of the rest."""
    found = layout(n_devices=64, dp=64, ep=8, ep_axis="inside_dp")
    assert seen(found, "data")[:2] == (64, True) and found.nodes == 1
    assert seen(found, "expert_data") == (8, True, pytest.approx(NIC))
    assert seen(found, "expert")[:2] == (8, False)
    wide = layout(n_devices=64, dp=64, ep=64, ep_axis="inside_dp")
    assert wide.nodes == 8 and seen(wide, "expert_data")[0] == 1
    assert wide.expert_group.network and wide.expert_network.bytes_per_s == pytest.approx(NIC)


def test_an_expert_axis_of_its_own_splits_batch_and_dense_weights():
    """MaxText's base.yml: `embed` is sharded over fsdp and expert; experts' weights over fsdp alone."""
    found = layout(n_devices=64, fsdp=8, ep=8, ep_axis="own", global_batch=64)
    assert seen(found, "fsdp") == (64, True, pytest.approx(8 * NIC))
    assert seen(found, "expert_fsdp") == (8, True, pytest.approx(NIC))
    assert seen(found, "expert")[:2] == (8, False) and found.nodes == 1
    assert found.microbatches == 1      # 64 sequences on 64 ranks, one each
    across = layout(n_devices=64, fsdp=2, ep=32, ep_axis="own", dcn_ep=4, global_batch=64)
    assert across.nodes == 4 and across.expert_group.network


def test_stages_are_outermost():
    assert not layout(n_devices=8, pp=2, dp=4).send_group.network
    across = layout(n_devices=16, pp=2, dp=8).send_group
    assert across.network and across.bytes_per_s == pytest.approx(NIC)


def test_a_rack_is_one_domain():
    found = layout(chip="gb200", n_devices=64, fsdp=64)
    assert seen(found, "fsdp") == (64, False, 900e9)     # NVLink 5, one direction


def test_slices_exchange_gradients_over_the_data_centre_network():
    """TPU v5e: a 16x16 slice has ICI between all its chips; two of them have the network only."""
    tpu = {"chip": "tpu-v5e", "framework": "MaxText (JAX)", "model": LLAMA_8B}
    found = layout(**tpu, n_devices=512, n_slices=2, dp=2, fsdp=256, topology="16x16 per slice")
    assert seen(found, "fsdp")[:2] == (256, False)
    assert seen(found, "data")[:2] == (2, True)
    assert found.data_group.bytes_per_s < found.fsdp_group.bytes_per_s
    assert seen(layout(**tpu, n_devices=256, fsdp=256), "data")[0] == 1


def test_fully_sharded_where_no_layout_was_published():
    found = layout(n_devices=64, dp=None, fsdp=None, tp=2, pp=4)
    assert (found.data, found.fsdp, found.tensor, found.stage) == (1, 8, 2, 4)


def test_microbatches_that_nobody_gives():
    """One sequence at a time through a pipeline, else at most 4 of them."""
    usual = {"n_devices": 8, "micro_batch": None, "global_batch": 64}
    assert layout(**usual, dp=4, pp=2).micro_batch == 1
    found = layout(**usual, fsdp=8)
    assert (found.micro_batch, found.microbatches) == (4, 2)
