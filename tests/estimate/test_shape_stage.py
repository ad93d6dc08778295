"""One microbatch on one stage: what is exposed, what the host holds up, and the loss."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_facts import GPU, IDEAL, LINK, MIXTURE, MODEL, TPU, facts

from jaxplan.estimate.shapes.dense import feed_forward_s, projections_s
from jaxplan.estimate.shapes.experts import experts_s, moved_s
from jaxplan.estimate.shapes.layer import core_s, layer, streamed_bytes
from jaxplan.estimate.shapes.stage import head_s, hidden, microbatch

TOKENS = 2 * 4096
FREE = replace(LINK, latency_s=0.0, all_reduce_latency_s=0.0)


def total(found) -> float:
    return float(np.sum(list(found.lines.values())))


def test_the_lines_are_the_two_passes():
    """Without sharded weights the lines are forward and backward, and nothing else."""
    run = facts(MIXTURE, tensor=8, tensor_group=LINK, choices={"recompute_mlp": 1, "recompute_core": 1})
    found = microbatch(run, IDEAL)
    assert total(found) == pytest.approx(float(found.forward + found.backward))
    assert float(found.total) == pytest.approx(total(found))


def test_the_loss_multiplies_by_the_vocabulary_three_times():
    """2 M D V FLOPs forward, twice that backward; one matmul less where nothing is trained. 12 bytes a logit."""
    matmul, loss = head_s(facts(), replace(IDEAL, wave=0))
    assert matmul == pytest.approx(6 * TOKENS * 4096 * 32000 / 1e15)
    assert loss == pytest.approx(12 * TOKENS * 32000 / 3e12)
    frozen, _ = head_s(facts(choices={"trained": 0}), IDEAL)
    assert frozen == pytest.approx(2 / 3 * matmul)
    shared, passes = head_s(facts(tensor=2), IDEAL)
    assert (shared, passes) == (pytest.approx(matmul / 2), pytest.approx(loss / 2))


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1))
def test_no_more_is_hidden_than_is_moved_or_computed(compute, moved, share):
    found = hidden(compute, moved, share)
    assert 0 <= found <= min(compute, moved)


@pytest.mark.parametrize(("reshard", "gathers"), [(1, 2), (0, 1)])
def test_weights_are_gathered_for_each_pass_and_gradients_scattered(reshard, gathers):
    """ZeRO-3 (Rajbhandari et al. 2020, arXiv:1910.02054, section 7): two all-gathers and one reduce-scatter."""
    run = facts(fsdp=8, fsdp_group=FREE, choices={"reshard": reshard})
    exposed = float(microbatch(run, IDEAL).lines["fsdp"])
    moved = 7 / 8 * float(MODEL.parameters) / 100e9
    assert exposed == pytest.approx((gathers * 2 + 4) * moved)


def test_what_fits_under_compute_is_hidden():
    run = facts(fsdp=8, fsdp_group=replace(FREE, bytes_per_s=1e15))
    assert float(microbatch(run, replace(IDEAL, state_overlap=1)).lines["fsdp"]) == pytest.approx(0, abs=1e-12)
    exposed, half = (float(microbatch(run, replace(IDEAL, state_overlap=s)).lines["fsdp"]) for s in (0, 0.5))
    assert half == pytest.approx(exposed / 2)


def test_tensor_ranks_exchange_in_both_passes_and_in_a_full_recomputation():
    """Megatron's all-reduces a layer: 2 forward, 2 backward, 2 again (Korthikanti et al. 2022, section 4.1)."""
    again = {"recompute_mlp": 1, "recompute_qkv": 1}
    usual, repeated = (
        float(microbatch(facts(tensor=8, tensor_group=FREE, choices=c), IDEAL).lines["tensor"]) for c in ({}, again)
    )
    one = 2 * 7 / 8 * TOKENS * 4096 * 2 / 100e9     # an all-reduce
    assert usual == pytest.approx(8 * 4 * one)
    assert repeated == pytest.approx(8 * 6 * one)
    assert float(
        microbatch(facts(tensor=8, tensor_group=FREE), replace(IDEAL, tensor_overlap=0.25)).lines["tensor"]
    ) == pytest.approx(0.75 * usual)


def test_a_host_that_is_slower_than_the_device_sets_the_pace():
    """A layer's launches at a millisecond each take longer than the layer: it takes as long as they do."""
    slow = replace(IDEAL, host_s=1e-3)
    eager, captured = (microbatch(facts(MIXTURE, choices={"graphs": g}), slow) for g in (0, 1))
    device = total(captured)
    assert float(captured.lines["launch"]) == 0
    # 8 layers of 480 launches, twice for 64 experts on one device
    assert total(eager) == pytest.approx(8 * 480 * 2 * 1e-3)
    assert total(eager) > device
    half = microbatch(facts(MIXTURE, choices={"graphs": 0.5}), slow)
    assert total(half) == pytest.approx(total(eager) / 2)
    assert total(microbatch(facts(choices={"graphs": 0}), slow)) == total(microbatch(facts(), slow))   # no experts


def test_a_layer_of_experts_computes_as_a_dense_one_of_all_the_chosen():
    """8 of 64 experts of width 2048 are one feed-forward of 16384, where rows and experts divide evenly."""
    run = facts(MIXTURE)
    assert experts_s(run, IDEAL) == pytest.approx(float(feed_forward_s(run, IDEAL, 16384)))
    assert experts_s(run, replace(IDEAL, grouped=0.5)) == pytest.approx(float(experts_s(run, IDEAL)))
    grouped = facts(MIXTURE, choices={"grouped": 1})
    assert experts_s(grouped, replace(IDEAL, grouped=0.5)) == pytest.approx(2 * float(experts_s(run, IDEAL)))
    shared = experts_s(facts(replace(MIXTURE, shared_mlp=2048)), IDEAL) - experts_s(run, IDEAL)
    assert shared == pytest.approx(float(feed_forward_s(run, IDEAL, 2048)))


def test_the_router_reads_and_writes_what_it_permutes():
    """12 bytes a token and expert, 6 passes of two bytes over 8 copies of each token."""
    assert moved_s(facts(MIXTURE), IDEAL) == pytest.approx(TOKENS * (64 * 12 + 8 * 4096 * 2 * 6) / 3e12)


def test_projections_split_over_tensor_ranks():
    """Query and output are D x D, keys and values D x 1024 each."""
    qkv, out = projections_s(facts(), IDEAL)
    assert qkv == pytest.approx(2 * TOKENS * 4096 * (4096 + 2 * 1024) / 1e15)
    assert out == pytest.approx(2 * TOKENS * 4096 * 4096 / 1e15)
    assert projections_s(facts(tensor=2), IDEAL) == (pytest.approx(qkv / 2), pytest.approx(out / 2))


def test_latent_projections_by_hand():
    latent = {"query_rank": 1536, "kv_rank": 512, "rope_dim": 64, "qk_dim": 192, "v_dim": 128}
    model = replace(MODEL, embed=7168, heads=128, kv_heads=128, **latent)
    qkv, out = projections_s(facts(model, chip=TPU), IDEAL)
    # the compressed keys' 576 columns are padded to 640: five arrays of 128
    elements = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 640 + 512 * 128 * (128 + 128)
    assert qkv == pytest.approx(2 * TOKENS * elements / TPU.flops_per_s)
    assert out == pytest.approx(2 * TOKENS * 128 * 128 * 7168 / TPU.flops_per_s)


def test_a_tpu_pads_heads_to_its_lanes_and_computes_diagonal_blocks_whole():
    """Splash attention in blocks of 512 keys: S / 2 + 256 of them a query. Heads of 64 take the time of 128."""
    forward, _ = core_s(facts(chip=TPU), IDEAL)
    assert forward == pytest.approx(2 * TOKENS * (2048 + 256) * 32 * 256 / TPU.flops_per_s)
    narrow = replace(MODEL, qk_dim=64, v_dim=64)
    assert core_s(facts(narrow, chip=TPU), IDEAL)[0] == pytest.approx(float(forward))
    wide = replace(GPU, flops_per_s=1e14)       # so slow that no exponential is waited for
    assert core_s(facts(narrow, chip=wide), IDEAL)[0] == pytest.approx(core_s(facts(chip=wide), IDEAL)[0] / 2)


def test_the_last_context_rank_has_most_of_a_causal_mask():
    """Of n contiguous parts the last has (2 n - 1) / n of the mean."""
    ranks = np.arange(4)
    work = (2 * ranks + 1) / 2
    crooked = replace(IDEAL, imbalance=(2 * 4 - 1) / 4)
    run = facts(context=4, choices={"context_balanced": 0})
    balanced = facts(context=4)
    assert core_s(run, crooked)[0] / core_s(balanced, crooked)[0] == pytest.approx(work[-1] / work.mean())
    alone = facts(choices={"context_balanced": 0})
    assert core_s(alone, crooked)[0] == core_s(facts(), crooked)[0]


def test_rows_that_are_not_aligned_slow_matmuls():
    """Heads of 100 are 200 bytes, no multiple of 16; heads of 96 are (NVIDIA, Matrix Multiplication Background)."""
    slow = replace(IDEAL, misaligned=0.5)

    def matmul(width, rates):
        return layer(facts(replace(MODEL, qk_dim=width, v_dim=width)), rates, experts=False).matmul.forward

    assert matmul(100, slow) == pytest.approx(2 * matmul(100, IDEAL))
    assert matmul(96, slow) == matmul(96, IDEAL)


def test_sequence_parallelism_shares_what_lies_between_blocks():
    """Korthikanti et al. 2022, section 4.2.2: norms, dropout and residuals are divided as well."""
    whole = streamed_bytes(facts(tensor=8, choices={"sequence_parallel": 0}), 0)
    shared = streamed_bytes(facts(tensor=8), 0)
    alone = streamed_bytes(facts(), 0)
    assert shared == pytest.approx(alone / 8)
    assert alone / 8 < whole < alone
