"""Sizes of published models against the parameter counts that sources print."""

import pytest

from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import PublishedModel, read


def counted():
    """One row of each model and sequence length: MPT learns a vector for every position."""
    rows = (r for r in read() if r.model.n_params and r.model.layers and r.model.heads)
    return {(r.model.name, r.seq_len if r.model.name.startswith("mpt") else 0): r for r in rows}


@pytest.mark.parametrize(("name", "positions"), sorted(counted()))
def test_parameters_are_those_that_the_source_prints(name, positions):
    """`n_params` of the row's source, less the table of positions; biases and norms are not counted: under 0.5%."""
    model = counted()[name, positions].model
    published = model.n_params - positions * model.d_model
    assert float(model_of(model).parameters) == pytest.approx(published, rel=0.005)


def test_deepseek_v3_has_671_billion():
    """DeepSeek-AI 2024 (arXiv:2412.19437), section 4.2: 671B, of which 37B are active."""
    published = next(run.model for run in read() if "deepseek-v3" in run.model.name.lower())
    model = model_of(published.model_copy(update={"mtp_layers": 0}))     # 671B are without the module of 14B
    assert float(model.parameters) == pytest.approx(671e9, rel=0.01)
    active = float(model.parameters) - model.moe_layers * model.experts_parameters * (1 - model.top_k / model.experts)
    assert active == pytest.approx(37e9, rel=0.03)


def test_what_is_missing_is_named():
    with pytest.raises(Unpredictable, match=r"model\.layers, model\.vocab"):
        model_of(PublishedModel(d_model=64, d_ff=256, heads=4))


def test_windows():
    plain = {"layers": 4, "d_model": 64, "d_ff": 256, "heads": 4, "vocab": 100}
    assert model_of(PublishedModel(**plain)).pairs(4096) == 2048
    half = model_of(PublishedModel(**plain, sliding_window=128))
    assert half.pairs(4096) == (2048 + 128) / 2
    most = model_of(PublishedModel(**plain, sliding_window=512, sliding_window_pattern="5 local : 1 global"))
    assert most.pairs(4096) == pytest.approx(2048 / 6 + 512 * 5 / 6)
    counted = model_of(PublishedModel(**plain, sliding_window=512, sliding_window_pattern=6))
    assert counted.pairs(4096) == pytest.approx(most.pairs(4096))


def test_kinds_of_layers():
    """DeepSeek-V3: 3 dense of 61; Llama 4 Maverick: every second of 48 has experts; without experts none."""
    plain = {"layers": 48, "d_model": 64, "d_ff": 256, "heads": 4, "vocab": 100}
    every_second = model_of(PublishedModel(**plain, experts=128, moe_layer_step=2))
    assert (every_second.dense_layers, every_second.moe_layers) == (24, 24)
    deep = model_of(PublishedModel(**plain | {"layers": 61}, experts=256, first_dense_layers=3))
    assert (deep.dense_layers, deep.moe_layers) == (3, 58)
    assert model_of(PublishedModel(**plain)).moe_layers == 0


def test_what_a_source_leaves_out_is_the_usual():
    """Heads share the width, every head has its keys, a gate, one expert a token as wide as the feed-forward."""
    model = model_of(PublishedModel(layers=4, d_model=64, d_ff=256, heads=4, vocab=100, experts=8))
    assert (model.qk_dim, model.v_dim, model.kv_heads, model.mlp_matrices) == (16, 16, 4, 3)
    assert (model.top_k, model.expert_mlp, model.shared_mlp, model.tied) == (1, 256, 0, 0)
