"""From what a source prints to seconds: step times, and model FLOPs by the conventions that sources count them in."""

from __future__ import annotations

import dataclasses

from jaxplan.estimate.shapes.facts import Model
from jaxplan.units import TERA
from jaxplan.validate.published import PublishedRun

UNKNOWN = ("none", "unspecified")
CAUSAL = ("causal", "lora")     # every release that publishes LoRA counts the causal half


def model_flops_per_token(model: Model, seq: float, causal: bool = False) -> float:
    """6 FLOPs a matmul parameter that a token meets (embedding lookups are none), and attention.

    Args:
        causal: count the causal half of attention only.
    """
    active = model.experts_parameters * model.top_k / max(model.experts, 1)
    matmul = (
        model.all_layers * float(model.attention_parameters)
        + model.dense_layers * model.dense_mlp_parameters
        + float(model.all_moe_layers) * (active + model.shared_parameters)
        + model.vocab * model.embed
    )
    return 6 * matmul + _attention_flops(model, seq, causal, windowed=False)


def _attention_flops(model: Model, seq: float, causal: bool, windowed: bool) -> float:
    pairs = model.pairs(seq, causal=causal) if windowed else (seq / 2 if causal else seq)
    return 6 * model.layers * model.heads * (model.qk_dim + model.v_dim) * pairs


def counted_flops_per_token(run: PublishedRun, model: Model) -> float | None:
    """FLOPs per token as the run's source counts them; None where its convention is not known.

    The conventions are those of `[flop_conventions]` in `profiling/published/runs.toml`.
    """
    convention, seq = run.flop_convention or "none", float(run.seq_len or 0)
    if convention in UNKNOWN or convention.endswith("_unclear"):
        return None
    one_mtp = convention == "megatron_causal_plus_mtp"
    counted = _without_mtp(model) if not one_mtp else model
    base = model_flops_per_token(counted, seq)
    matmul = base - _attention_flops(counted, seq, causal=False, windowed=False)
    causal = any(word in convention for word in CAUSAL)
    total = matmul + _attention_flops(counted, seq, causal, windowed="window" in convention)
    if convention in ("megatron_hw_full_recompute", "bigscience_old_estimator"):
        # Narayanan et al. 2021 (arXiv:2104.04473), section 5.1, equation 3; the older estimator is about 3% lower
        d, layers = model.embed, model.layers
        full = 96 * layers * d**2 * (1 + seq / (6 * d) + model.vocab / (16 * layers * d))
        return full * (0.97 if convention == "bigscience_old_estimator" else 1.0)
    if convention == "korthikanti_model":
        # Korthikanti et al. 2022 (arXiv:2205.05198), equation 7
        d, layers = model.embed, model.layers
        return 72 * layers * d**2 * (1 + seq / (6 * d) + model.vocab / (12 * d * layers))
    if convention == "megatron_lora":
        return total * 2 / 3
    if convention == "mpt_full":
        # learned positions are parameters too: 9% of the smallest model at the longest sequence
        return 6 * (run.model.n_params or float(model.parameters)) + 12 * model.layers * model.embed * seq
    if convention == "palm":
        # Chowdhery et al. 2022 (arXiv:2204.02311), appendix B
        return 6 * float(model.parameters) + 12 * model.layers * model.heads * model.qk_dim * seq
    if convention == "titan_full_with_embedding":
        return total + 6 * model.vocab * model.embed
    return total


def _without_mtp(model: Model) -> Model:
    return dataclasses.replace(model, mtp_layers=0.0)


def published_step_s(run: PublishedRun, model: Model | None) -> float | None:
    """Seconds of one optimizer step: printed, or from tokens per second, or from FLOP/s and the source's convention."""
    for direct in (run.step_time_s, run.derived_step_time_s):
        if direct:
            return direct
    if not run.global_batch or not run.seq_len:
        return None
    tokens = run.global_batch * run.seq_len / run.n_devices
    rate = run.tokens_per_s_per_device or run.derived_tokens_per_s_per_device
    if rate:
        return tokens / rate
    flops_per_s = run.tflops_per_device * TERA if run.tflops_per_device else None
    if flops_per_s is None and run.mfu and run.mfu_peak_tflops:
        flops_per_s = run.mfu * run.mfu_peak_tflops * TERA
    counted = counted_flops_per_token(run, model) if model is not None and flops_per_s else None
    return tokens * counted / flops_per_s if counted and flops_per_s else None
