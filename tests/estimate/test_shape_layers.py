"""Layers and their exchange against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from shape_facts import ALONE, CHOICES, GPU, IDEAL, LINK, MIXTURE, MODEL, TPU, facts

from jaxplan.estimate.shapes import exchange
from jaxplan.estimate.shapes.experts import one_hot_s
from jaxplan.estimate.shapes.layer import core_s, layer, narrowest

TOKENS = 2 * 4096
ACTIVATIONS = TOKENS * 4096 * 2


def test_attention_counts_the_causal_half():
    """Two matmuls of S^2 / 2 scores a head forward (2 FLOPs a multiplication), five backward."""
    forward, backward = core_s(facts(), IDEAL)
    scores = 2 * 4096**2 / 2 * 32
    assert forward == pytest.approx(2 * scores * (128 + 128) / 1e15)
    assert backward == pytest.approx(2.5 * forward)


def test_attention_of_narrow_heads_waits_for_exponentials():
    """16 a clock and core at 1.75 GHz: 3.7e12 a second on 132 cores (Shah et al. 2024, section 3.1, has 3.9e12)."""
    narrow = replace(MODEL, qk_dim=32, v_dim=32)
    forward, _ = core_s(facts(narrow), IDEAL)
    exponentials = 2 * 4096**2 / 2 * 32
    assert forward == pytest.approx(exponentials / (132 * 16 * 1.75e9))
    assert 2 * narrowest(GPU) * 3.9e12 == pytest.approx(GPU.flops_per_s, rel=0.1)
    assert narrowest(TPU) == 0


def test_unfused_attention_is_never_faster():
    plain = replace(facts().habits, fused_attention=0, causal_attention=0)
    for seq in (512, 2048, 8192):
        fused, other = core_s(facts(seq=seq), IDEAL), core_s(facts(seq=seq, habits=plain), IDEAL)
        assert other[0] > fused[0] and other[1] > fused[1]


def test_a_layer_computes_six_flops_a_parameter_and_token():
    """Forward 2, gradients of inputs and weights 2 each; GPUs add 6% to the last (SimuMax's tables)."""
    ideal = replace(IDEAL, wave=0)
    found = layer(facts(), ideal, experts=False).matmul
    parameters = float(MODEL.attention_parameters + MODEL.dense_mlp_parameters)
    assert found.forward == pytest.approx(2 * parameters * TOKENS / 1e15, rel=1e-6)
    assert found.backward == pytest.approx((2 + 0.06) * found.forward)
    frozen = layer(facts(choices={"trained": 0}), ideal, experts=False).matmul
    assert frozen.backward == pytest.approx(found.forward)


def test_full_recomputation_runs_the_forward_pass_again():
    every = dict.fromkeys(("mlp", "qkv", "out", "core", "rest"), 1)
    found = layer(facts(choices={f"recompute_{k}": v for k, v in every.items()}), IDEAL, experts=False)
    for part in (found.matmul, found.attention, found.memory):
        assert part.again == pytest.approx(part.forward)
    nothing = layer(facts(), IDEAL, experts=False)
    assert nothing.total().again == 0


def test_one_hot_dispatch_costs_four_s_k_c_d_flops_a_token():
    """Lepikhin et al. 2020 (arXiv:2006.16668), algorithm 2: dispatch and combine."""
    found = one_hot_s(facts(MIXTURE, choices={"one_hot": 1, "capacity": 1.25}), IDEAL)
    assert found == pytest.approx(4 * 4096 * 8 * 1.25 * 4096 * TOKENS / 1e15)


def test_tensor_ranks_all_reduce_twice_a_pass():
    """Shoeybi et al. 2019: 2 all-reduces of 2 (n - 1) / n each; sharded between blocks, 4 halves of them."""
    sizes = {"tensor": 8, "tensor_group": LINK}
    whole = exchange.tensor_s(facts(choices={"sequence_parallel": 0}, **sizes), IDEAL)
    assert whole == pytest.approx(2 * (2e-5 + 2 * 7 / 8 * ACTIVATIONS / 100e9))
    sharded = exchange.tensor_s(facts(**sizes), IDEAL)
    assert sharded == pytest.approx(4 * (1e-5 + 7 / 8 * ACTIVATIONS / 100e9))


def test_two_protocols_pay_the_start_twice():
    """t = start + x + min(x, start): of jaxplan.machine.collectives."""
    link = replace(LINK, two_protocols=1.0)
    small, large = 1e5, 1e9
    assert exchange.gather_s(link, IDEAL, small) == pytest.approx(1e-5 + 2 * 7 / 8 * small / 100e9)
    assert exchange.gather_s(link, IDEAL, large) == pytest.approx(2e-5 + 7 / 8 * large / 100e9)
    assert exchange.gather_s(ALONE, IDEAL, large) == 0


@pytest.mark.parametrize(("nodes", "chosen"), [(2, 8), (8, 8), (4, 2)])
def test_a_token_crosses_once_a_node(nodes, chosen):
    """The expected number of other nodes that a token's choices fall on, by drawing them."""
    model = replace(MIXTURE, top_k=chosen)
    network = replace(LINK, size=64, bytes_per_s=10e9, latency_s=0.0)
    near = replace(network, bytes_per_s=1e18)
    sizes = {"expert": 64, "nodes": nodes, "expert_group": near, "expert_network": network}
    found = exchange.experts_exchange_s(facts(model, choices={"once_a_node": 1}, **sizes), IDEAL)
    drawn = np.random.default_rng(0).integers(0, nodes, size=(100_000, chosen))
    others = np.mean([np.unique(row[row != 0]).size for row in drawn])
    assert found == pytest.approx(2 * others * ACTIVATIONS / 10e9, rel=0.01)
    every = exchange.experts_exchange_s(facts(model, **sizes), IDEAL)
    assert every == pytest.approx(2 * chosen * (nodes - 1) / nodes * ACTIVATIONS / 10e9)


def test_weights_are_gathered_once():
    """All parameters of all layers, embedding and head, (n - 1) / n of them, and a start a layer."""
    found = exchange.weights_s(facts(fsdp=8, fsdp_group=LINK), IDEAL, 2.0)
    assert found == pytest.approx(7 / 8 * 2 * float(MODEL.parameters) / 100e9 + 8 * 1e-5)
    assert CHOICES.reshard == 1
