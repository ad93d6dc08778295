"""Sizes of published models against the parameter counts that sources print."""

import pytest

from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import PublishedModel, read


def counted():
    return {run.model.name: run.model for run in read() if run.model.n_params and run.model.layers and run.model.heads}


@pytest.mark.parametrize("name", sorted(counted()))
def test_parameters_are_those_that_the_source_prints(name):
    """`n_params` of the row's source; position tables and biases are not counted here: at most 2% of small models."""
    published = counted()[name]
    assert float(model_of(published).parameters) == pytest.approx(published.n_params, rel=0.03)


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
