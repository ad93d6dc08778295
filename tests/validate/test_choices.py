"""What words of sources mean: recomputation, dispatch, overlap, precision, frameworks."""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.validate.choices import choices_of, is_narrow, recompute_of
from jaxplan.validate.framework import profile_of, profiles
from jaxplan.validate.models import model_of
from jaxplan.validate.published import read

EVERYTHING, NOTHING = (1, 1, 1, 1, 1), (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("full", EVERYTHING),
        ("full (per block)", EVERYTHING),
        ("none", NOTHING),
        ("activation CPU offload of 20 layers", NOTHING),
        ("selective (core attention)", (0, 0, 0, 1, 0.3)),
        ("selective: mlp", (1, 0, 0, 0, 0.5)),
        ("minimal", (0, 0, 0, 1, 0.7)),
        ("minimal_with_context", (0, 0, 0, 0, 0.7)),
        ("save_dot_except_mlp", (1, 0, 0, 1, 1)),
        ("custom: saves decoder_layer_input, context, q/k/v proj on device", (1, 0, 1, 0, 1)),
    ],
)
def test_policies(words, expected):
    row = run(remat=words)
    assert recompute_of(row, profile_of(row, "gpu")) == pytest.approx(expected)


def test_every_published_policy_is_understood():
    """Only where a source names none, or MaxText's `custom` without its tensors, the profile's default stands in."""
    for row in read():
        if row.remat and row.remat not in ("custom",) and not row.remat.startswith("custom with"):
            profile = profile_of(row, "tpu" if row.chip.startswith("tpu") else "gpu")
            marked = recompute_of(row, profile)
            assert marked != profile.default_recompute or marked == NOTHING or "custom" in row.remat, row.remat


@pytest.mark.parametrize(
    ("framework", "date", "kind", "expected"),
    [
        ("MaxText (JAX)", "2025", "tpu", "xla-tpu"),
        ("MaxText (JAX, ROCm)", "2026", "gpu", "xla-gpu"),
        ("Megatron-Core", "2021", "gpu", "megatron-2021"),
        ("Megatron-Core", "2024", "gpu", "megatron"),
        ("Megatron-Core", None, "gpu", "megatron"),
        ("Megatron-Bridge / Megatron-Core", "25.11", "gpu", "megatron-bridge"),
        ("Megatron-DeepSpeed", "2022-03", "gpu", "deepspeed-pipeline"),
        ("Composer / PyTorch FSDP", "2023", "gpu", "composer"),
        ("torchtitan (FSDP2)", "2025", "gpu", "fsdp"),
        ("something new", "2026", "gpu", "fsdp"),
        ("something new", "2026", "tpu", "xla-tpu"),
    ],
)
def test_frameworks(framework, date, kind, expected):
    assert profile_of(run(framework=framework, date=date), kind).id == expected


def test_the_last_profile_takes_every_framework():
    for kind in ("tpu", "gpu"):
        last = [profile for profile in profiles() if kind in profile.kinds][-1]
        assert "" in last.matches and not last.until


@pytest.mark.parametrize(
    ("precision", "narrow"),
    [("bf16", False), ("fp16 mixed", False), ("fp8 rowwise", True), ("mxfp8", True), ("nvfp4", True), (None, False)],
)
def test_precision(precision, narrow):
    assert is_narrow(run(precision=precision)) is narrow


def choices(**changes):
    row = run(**changes)
    return choices_of(row, model_of(LLAMA_8B), profile_of(row, "gpu"), tpu=False)


def test_dispatch():
    one_hot = choices(moe_dispatch="dense matmul with capacity factor (token dropping)", capacity_factor=1.25)
    assert (one_hot.one_hot, one_hot.grouped, one_hot.capacity) == (1, 0, 1.25)
    once = choices(moe_dispatch="dropless, DeepEP intra-node dispatch + grouped GEMM (v3)")
    assert (once.once_a_node, once.ragged, once.one_hot) == (1, 0, 0)
    assert choices(moe_dispatch="dropless, ragged all-to-all + grouped GEMM").ragged == 1


def test_sharding_and_overlap():
    assert choices(layout_note="reshard_after_forward=never").reshard == 0 and choices().reshard == 1
    assert choices(zero_stage=2).reshard == 0 and choices(task="lora").trained == 0
    assert choices(overlap_note="async TP").tensor_overlap == 1 and choices().tensor_overlap == 0
    assert choices(overlap_note="MoE all-to-all overlap; cuda graph full_iteration").expert_overlap == 1
    assert choices(overlap_note="MoE all-to-all overlap; cuda graph full_iteration").graphs == 1
    assert 0 < choices(overlap_note="cuda graph transformer_engine ['attn']").graphs < 1


def test_offloaded_bytes():
    """Layer inputs of 4096 and queries, keys, values of 4096 + 2 x 1024 elements of two bytes."""
    found = choices(remat="custom: decoder_layer_input and q/k/v proj offloaded to host")
    assert found.offloaded == 2 * (4096 + 4096 + 2048)
