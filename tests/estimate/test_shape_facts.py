"""Sizes of decoders against the parameter counts of released weights, and records as arrays."""

from dataclasses import replace

import numpy as np
import pytest
from shape_facts import FACTS, GPU, LINK, MODEL, facts

from jaxplan.estimate.shapes.facts import Model, stack


def decoder(layers, embed, mlp, heads, kv_heads, vocab, **others) -> Model:
    usual = replace(MODEL, layers=layers, dense_layers=layers, embed=embed, mlp=mlp, heads=heads, kv_heads=kv_heads)
    return replace(usual, qk_dim=embed // heads, v_dim=embed // heads, vocab=vocab, **others)


def mixture(model: Model, experts, top_k, expert_mlp) -> Model:
    sizes = {"moe_layers": model.layers, "dense_layers": 0, "expert_mlp": expert_mlp}
    return replace(model, experts=experts, top_k=top_k, **sizes)


# Numbers of elements of the released weights, as the model cards' safetensors indices have them.
RELEASED = {
    "Llama 3 8B": (decoder(32, 4096, 14336, 32, 8, 128256), 8_030_261_248),
    "Llama 3 70B": (decoder(80, 8192, 28672, 64, 8, 128256), 70_553_706_496),
    "Llama 2 7B": (decoder(32, 4096, 11008, 32, 32, 32000), 6_738_415_616),
    "Mistral 7B": (decoder(32, 4096, 14336, 32, 8, 32000), 7_241_732_096),
    "Mixtral 8x7B": (mixture(decoder(32, 4096, 14336, 32, 8, 32000), 8, 2, 14336), 46_702_792_704),
}


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_of_the_released_weights(name):
    """To the last one: two norms a layer and one at the end are what is not counted."""
    model, released = RELEASED[name]
    assert float(model.parameters) + (2 * model.layers + 1) * model.embed == released


def test_the_head_of_a_tied_model_is_its_embedding():
    assert float(replace(MODEL, tied=1).parameters) == float(MODEL.parameters) - MODEL.vocab * MODEL.embed


def test_latent_attention_by_hand():
    """DeepSeek-V3 (arXiv:2412.19437, section 4.2): 7168 wide, 128 heads of 128 + 64 and 128, ranks 1536 and 512."""
    latent = {"query_rank": 1536, "kv_rank": 512, "rope_dim": 64, "qk_dim": 192, "v_dim": 128}
    model = replace(MODEL, embed=7168, heads=128, kv_heads=128, **latent)
    queries, keys = 7168 * 1536 + 1536 * 128 * 192, 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert float(model.attention_parameters) == queries + keys + 128 * 128 * 7168
    without = replace(model, query_rank=0)      # DeepSeek-V2-Lite: queries are projected at once
    assert float(without.attention_parameters) == 7168 * 128 * 192 + keys + 128 * 128 * 7168
    assert (model.latent, MODEL.latent) == (1, 0)


def test_layers_of_multi_token_prediction_are_of_the_last_layers_kind():
    dense, mixed = replace(MODEL, mtp_layers=1), replace(mixture(MODEL, 8, 2, 1024), mtp_layers=1)
    one_more = replace(MODEL, layers=9, dense_layers=9)
    assert float(dense.parameters - MODEL.parameters) == float(MODEL.attention_parameters)
    assert float(mixed.all_moe_layers) == MODEL.layers + 1
    assert float(one_more.parameters) > float(dense.parameters)


def test_keys_of_a_query():
    """All queries of a sequence attend to 1 + 2 + ... + S keys, S / 2 each; with a window, to at most so many."""
    seq, window = 512, 64
    summed = np.mean([min(i + 1, window) for i in range(seq)])
    assert MODEL.pairs(seq) == pytest.approx(np.mean(np.arange(seq)), rel=2 / seq)
    windowed = replace(MODEL, window=window, windowed=1)
    assert windowed.pairs(seq) == pytest.approx(summed, rel=0.1)    # the first queries have less than a window
    assert replace(windowed, windowed=0.5).pairs(seq) == (seq / 2 + window) / 2
    assert replace(windowed, window=seq).pairs(seq) == MODEL.pairs(seq)


def test_records_become_arrays_field_by_field():
    other = facts(chip=replace(GPU, cores=108), tensor=8, tensor_group=LINK)
    both = stack([FACTS, other])
    np.testing.assert_array_equal(both.chip.cores, [132, 108])
    np.testing.assert_array_equal(both.layout.tensor_group.size, [1, 8])
    np.testing.assert_array_equal(both.layout.tokens, [FACTS.layout.tokens, other.layout.tokens])
    assert both.model.parameters.dtype == float and both.model.parameters.shape == (2,)
