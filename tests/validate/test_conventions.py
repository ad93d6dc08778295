"""FLOPs as sources count them: a row that prints both FLOP/s and tokens/s must agree with itself."""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.validate.conventions import counted_flops_per_token, model_flops_per_token, published_step_s
from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import read


def pairs():
    """(row, FLOPs per token that it prints, FLOPs per token of its convention)."""
    for row in read():
        rate = row.tokens_per_s_per_device
        try:
            model = model_of(row.model)
        except Unpredictable:
            continue
        if row.tflops_per_device and rate and (counted := counted_flops_per_token(row, model)):
            yield row, row.tflops_per_device * 1e12 / rate, counted


def test_printed_rates_agree_with_the_convention():
    """Within 5%, but for a special architecture (Gemma 4) and frozen weights, whose adapters are not counted here."""
    found = [pair for pair in pairs() if "unclear" not in pair[0].flop_convention]
    off = [row.id for row, printed, counted in found if abs(counted / printed - 1) > 0.05]
    assert len(found) > 150 and all("gemma4" in name or "-lora-" in name for name in off), off


def test_step_times_that_are_printed_agree_with_rates_that_are_printed():
    timed = [row for row in read() if row.step_time_s and row.tokens_per_s_per_device]
    both = [row for row in timed if row.global_batch and row.seq_len]
    ratios = [
        row.step_time_s * row.tokens_per_s_per_device * row.n_devices / (row.global_batch * row.seq_len) for row in both
    ]
    assert len(ratios) > 50 and sum(abs(ratio - 1) > 0.03 for ratio in ratios) <= 0.03 * len(ratios)


def test_llama_8b_by_hand():
    """6 FLOPs for each of 7.50e9 matmul parameters (8.03e9 less the embedding), 12 L N H S for all of attention."""
    matmul = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    model = model_of(LLAMA_8B)
    assert model_flops_per_token(model, 8192) == pytest.approx(6 * matmul + 12 * 32 * 4096 * 8192)
    assert model_flops_per_token(model, 8192, causal=True) == pytest.approx(6 * matmul + 6 * 32 * 4096 * 8192)


@pytest.mark.parametrize(
    ("convention", "per_token"),
    [
        # Narayanan et al. 2021 (arXiv:2104.04473), section 5.1: 96 B s l h^2 (1 + s / 6h + V / 16 l h)
        ("megatron_hw_full_recompute", 96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))),
        # Korthikanti et al. 2022 (arXiv:2205.05198), equation 7
        ("korthikanti_model", 72 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 12288 * 96))),
    ],
)
def test_equations_of_papers(convention, per_token):
    sizes = {"layers": 96, "d_model": 12288, "d_ff": 49152, "heads": 96, "kv_heads": 96, "vocab": 51200}
    gpt3 = LLAMA_8B.model_copy(update=sizes | {"mlp_matrices": 2})
    row = run(model=gpt3, seq_len=2048, flop_convention=convention, step_time_s=None, tflops_per_device=150.0)
    assert counted_flops_per_token(row, model_of(gpt3)) == pytest.approx(per_token, rel=1e-9)
    tokens = row.global_batch * row.seq_len / row.n_devices
    assert published_step_s(row, model_of(gpt3)) == pytest.approx(tokens * per_token / 150e12)


def test_nothing_is_derived_from_an_unknown_convention():
    row = run(step_time_s=None, tflops_per_device=400.0, flop_convention="unspecified")
    assert published_step_s(row, model_of(row.model)) is None
    assert published_step_s(run(step_time_s=None, tokens_per_s_per_device=4096.0), None) == pytest.approx(2.0)
