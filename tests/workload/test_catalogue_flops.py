"""Every model of the catalogue: FLOPs of the traced program against the closed form.

Closed form (Kaplan et al. 2020, arXiv:2001.08361, section 2.1; causal attention as in arXiv:2307.08691, section 4.1):
6 x parameters x tokens, of the parameters that are multiplied (all but the embedding's lookup, norms and biases; a tied
embedding is multiplied once, as the output projection), plus 6 x layers x heads x head_dim x seq for each token. Of a
mixture of experts a token meets `top_k` experts, times the capacity factor: so many slots are computed, filled or not.
Latent attention computes values as wide as keys (`head_dim`), which its kernels want.
"""

import pytest

from jaxplan.machine import catalogue
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.parameters import active_parameter_count
from jaxplan.workload.program import trace

BATCH, CAPACITY = 8, 1.25
SHAPES = catalogue.models()


def test_all_kinds_of_models_are_there():
    names = {shape.name for shape in SHAPES}
    assert {"gpt2", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"} <= names
    assert {"llama3.2-1b", "gpt3-175b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"} <= names


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_program_flops_equal_the_closed_form(shape):
    seq = min(shape.default_seq, shape.max_positions or shape.default_seq)
    model = loss_function(shape, BATCH, seq, remat="none", kernels=Kernels(capacity_factor=CAPACITY))
    table = trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims)
    assert not table.uncovered
    lookup = shape.vocab * shape.embed if not shape.tied_embeddings else 0
    positions = shape.max_positions * shape.embed if shape.positions == "learned" else 0
    multiplied = active_parameter_count(shape) - lookup - positions
    if shape.experts is not None:
        experts = 3 * shape.embed * shape.experts.mlp * shape.experts.top_k
        multiplied += shape.repeated_layers * experts * (CAPACITY - 1)
    tokens = BATCH * seq
    expected = 6 * multiplied * tokens + 6 * shape.layers * shape.heads * shape.head_dim * seq * tokens
    assert table.model_flops == pytest.approx(expected, rel=0.01)
    # forward and backward as executed: the loss makes its logits again, attention its scores
    again = 2 * shape.vocab * shape.embed * tokens + shape.layers * shape.heads * shape.head_dim * seq * tokens
    executed = table.flops("matmul") + table.flops("attention")
    assert executed == pytest.approx(expected + again, rel=0.01)
