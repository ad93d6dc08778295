"""Parameter counts against the published ones, to the last parameter where those are exact."""

import dataclasses

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.models import records
from jaxplan.workload.parameters import active_parameter_count, parameter_count
from jaxplan.workload.shape import ExpertShape


@pytest.mark.parametrize("name", records())
def test_published_count(name):
    """The record says how far the published figure is rounded (1: it is exact)."""
    published = records()[name].published_parameters
    assert published is not None and published.source
    assert abs(parameter_count(catalogue.model(name)) - published.value) <= published.rounded_to / 2


PROMISED = """
gpt2 llama2-7b llama2-13b llama2-70b llama3-8b llama3-70b llama3-405b llama3.2-1b gpt3-175b
qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b
mixtral-8x7b mixtral-8x22b deepseek-v3 gemma-2b gemma-7b gemma2-9b
"""


def test_the_models_that_were_promised():
    assert set(PROMISED.split()) == set(records())


def test_exact_counts_stand_here_too():
    """The same figures typed again, so that a slip in a file cannot agree with itself."""
    exact = {
        "gpt2": 124_439_808,
        "llama2-7b": 6_738_415_616,
        "llama2-70b": 68_976_648_192,
        "llama3-8b": 8_030_261_248,
        "llama3-70b": 70_553_706_496,
        "llama3.2-1b": 1_235_814_400,
        "qwen3-8b": 8_190_735_360,
        "qwen3-30b-a3b": 30_532_122_624,
        "mixtral-8x7b": 46_702_792_704,
        "gemma-7b": 8_537_680_896,
        "gemma2-9b": 9_241_705_984,
    }
    assert {name: parameter_count(catalogue.model(name)) for name in exact} == exact


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("mixtral-8x7b", 12.9, 0.05),  # arXiv:2401.04088, section 1: 13B active ("12.9B" in the model card)
        ("mixtral-8x22b", 39.1, 0.1),  # Mistral AI, announcement: 39B active
        ("qwen3-30b-a3b", 3.3, 0.06),  # arXiv:2505.09388, table 2: 3.3B
        ("qwen3-235b-a22b", 22.2, 0.3),  # the same: 22B
        ("deepseek-v3", 37.6, 0.7),  # arXiv:2412.19437: 37B, embeddings counted in part
        ("llama3-8b", 8.030261248, 0),
    ],
)
def test_active_parameters(name, billions, tolerance):
    assert abs(active_parameter_count(catalogue.model(name)) / 1e9 - billions) <= tolerance


def test_llama_by_hand():
    """Layer by layer, as its paper draws it."""
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert parameter_count(catalogue.model("llama3-8b")) == 32 * layer + 2 * 128256 * 4096 + 4096


def test_every_switch_counts():
    base = catalogue.model("llama3.2-1b")
    count = parameter_count(base)
    layers, embed, queries, keys = 16, 2048, 32 * 64, 8 * 64

    def more(**changes):
        return parameter_count(dataclasses.replace(base, **changes)) - count

    assert more(tied_embeddings=False) == base.vocab * embed
    assert more(attention_bias=True) == layers * (queries + 2 * keys)
    assert more(output_bias=True) == layers * embed
    assert more(mlp_bias=True) == layers * (2 * base.mlp + embed)
    assert more(qk_norm=True) == layers * 2 * 64
    assert more(post_norms=True) == layers * 2 * embed
    assert more(norm="layernorm") == (2 * layers + 1) * embed
    assert more(positions="learned", max_positions=1024) == 1024 * embed
    assert more(activation="gelu") == -layers * embed * base.mlp
    sparse = ExpertShape(
        experts=4,
        top_k=2,
        mlp=512,
        shared=1,
        shared_mlp=256,
        first_dense_layers=1,
        router_bias=True,
        shared_gate=True,
    )
    expert = 4 * 3 * embed * 512 + 3 * embed * 256 + embed + 4 * (embed + 1)
    assert more(experts=sparse) == (layers - 1) * (expert - 3 * embed * base.mlp)


def test_unknown_model():
    with pytest.raises(InputError, match=r"unknown model 'llama9'.*llama3-8b"):
        catalogue.model("llama9")
    assert catalogue.model("llama3.1-8b").name == "llama3-8b"
