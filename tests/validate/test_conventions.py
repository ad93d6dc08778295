"""FLOPs as sources count them: a row that prints both FLOP/s and tokens/s must agree with itself."""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.units import TERA
from jaxplan.validate.conventions import counted_flops_per_token, model_flops_per_token, published_step_s
from jaxplan.validate.models import Unpredictable, model_of
from jaxplan.validate.published import read


def pairs():
    """(row, FLOP/s that it prints, FLOP/s of its tokens by its convention); MFU counts where its peak is printed."""
    for row in read():
        try:
            model = model_of(row.model)
        except Unpredictable:
            continue
        rate = row.tokens_per_s_per_device
        if not rate and row.step_time_s and row.global_batch and row.seq_len:
            rate = row.global_batch * row.seq_len / row.n_devices / row.step_time_s
        printed = row.tflops_per_device or (row.mfu and row.mfu_peak_tflops and row.mfu * row.mfu_peak_tflops)
        if printed and rate and (counted := counted_flops_per_token(row, model)):
            yield row, printed * TERA, rate * counted


def test_printed_rates_agree_with_the_convention():
    """Within 5%, but for a special architecture (Gemma 4: per-layer inputs, shared keys) that is not counted here."""
    found = list(pairs())
    off = [row.id for row, printed, counted in found if abs(counted / printed - 1) > 0.05]
    assert len(found) > 250 and all("gemma4" in name for name in off), off
    assert len({row.flop_convention for row, _, _ in found}) >= 12


def test_rates_of_one_convention_agree_closely():
    """MPT counts every parameter, positions as well (mosaicml/llm-foundry, llmfoundry/callbacks: speed monitor)."""
    ratios = [counted / printed for row, printed, counted in pairs() if row.flop_convention == "mpt_full"]
    assert len(ratios) > 100 and max(abs(ratio - 1) for ratio in ratios) < 0.01


@pytest.mark.parametrize(
    ("layers", "width", "heads", "devices", "batch", "seconds", "mfu"),
    [
        (48, 6144, 64, 8, 4, 1.10, 0.415),
        (96, 12288, 96, 64, 64, 13.75, 0.514),
        (105, 20480, 128, 280, 280, 37.83, 0.560),
        (128, 25600, 160, 512, 512, 71.49, 0.563),
    ],
)
def test_korthikantis_four_models(layers, width, heads, devices, batch, seconds, mfu):
    """Korthikanti et al. 2022 (arXiv:2205.05198), tables 3 and 5: 22B to 1T, A100 at 312 TFLOP/s, 2048 tokens."""
    row = run(model=gpt(layers, width, heads), seq_len=2048, flop_convention="korthikanti_model")
    per_token = counted_flops_per_token(row, model_of(row.model))
    assert per_token is not None
    assert per_token * batch * 2048 / devices / seconds / 312e12 == pytest.approx(mfu, rel=0.01)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "devices", "tokens", "rate", "days"),
    [(96, 12288, 96, 1024, 300e9, 140e12, 34), (128, 25600, 160, 3072, 450e9, 163e12, 84)],
)
def test_narayanans_training_times(layers, width, heads, devices, tokens, rate, days):
    """Narayanan et al. 2021 (arXiv:2104.04473), section 5.1: GPT-3 in 34 days, 1T in 84, full recomputation.

    Their equation 4, 8 FLOPs a parameter and token, leaves out the attention's scores: about 3%.
    """
    row = run(model=gpt(layers, width, heads), seq_len=2048, flop_convention="megatron_hw_full_recompute")
    per_token = counted_flops_per_token(row, model_of(row.model))
    assert per_token is not None
    assert 1 <= per_token * tokens / devices / rate / 86400 / days < 1.04


def gpt(layers, width, heads):
    sizes = {"layers": layers, "d_model": width, "d_ff": 4 * width, "heads": heads, "kv_heads": heads, "vocab": 51200}
    return LLAMA_8B.model_copy(update=sizes | {"head_dim": width // heads, "mlp_matrices": 2})


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


@pytest.mark.parametrize("convention", ["unspecified", "none", None, "megatron_unclear", "maxtext_unclear"])
def test_nothing_is_derived_from_an_unknown_convention(convention):
    row = run(step_time_s=None, tflops_per_device=400.0, flop_convention=convention)
    assert published_step_s(row, model_of(row.model)) is None


def test_what_was_measured_goes_before_what_is_derived():
    both = run(step_time_s=2.0, tokens_per_s_per_device=1.0, tflops_per_device=1.0, flop_convention="titan_full")
    assert published_step_s(both, model_of(both.model)) == 2.0
    rates = both.model_copy(update={"step_time_s": None})
    assert published_step_s(rates, model_of(both.model)) == 8192.0
    flops = rates.model_copy(update={"tokens_per_s_per_device": None})
    per_token = model_flops_per_token(model_of(both.model), 8192)
    assert published_step_s(flops, model_of(both.model)) == pytest.approx(8192 * per_token / 1e12)
    assert published_step_s(flops.model_copy(update={"global_batch": None}), model_of(both.model)) is None
    used = flops.model_copy(update={"tflops_per_device": None, "mfu": 0.5, "mfu_peak_tflops": 2.0})
    assert published_step_s(used, model_of(both.model)) == published_step_s(flops, model_of(both.model))


def test_adapters_train_two_thirds():
    """Forward and gradients of inputs, no gradients of weights; attention by its causal half."""
    row = run(flop_convention="megatron_lora")
    whole = model_flops_per_token(model_of(row.model), 8192, causal=True)
    assert counted_flops_per_token(row, model_of(row.model)) == pytest.approx(2 / 3 * whole)
