"""What words of sources mean: recomputation, dispatch, overlap, precision, frameworks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
        ("minimal_flash", (0, 0, 0, 0, 0.7)),
        ("save_dot_with_context_except_mlp", (1, 0, 0, 0, 1)),
        ("save_dot_except_mlpwi", (2 / 3, 0, 0, 1, 1)),
        ("save_qkv_proj", (1, 0, 1, 1, 1)),
        ("save_out_proj", (1, 1, 0, 1, 1)),
        ("selective layer (every 2nd)", (0.5,) * 5),
        ("custom: saves decoder_layer_input, context, q/k/v proj on device", (1, 0, 1, 0, 1)),
        # the gradient of the output projection needs its input, which is the core's output: it is run again
        ("custom: decoder_layer_input, out_proj, q/k/v proj offloaded to host", (1, 0, 0, 1, 1)),
        ("custom: mlpwo and out_proj saved on device", (2 / 3, 1, 0, 1, 1)),
    ],
)
def test_policies(words, expected):
    row = run(remat=words)
    assert recompute_of(row, profile_of(row, "gpu")) == pytest.approx(expected)


NAMES = ("context", "out_proj", "q/k/v proj", "mlpwo")


@given(st.sets(st.sampled_from(NAMES)), st.sampled_from(NAMES))
def test_what_is_kept_besides_is_never_computed_more_often(kept, also):
    def again(names):
        row = run(remat=f"custom: saves decoder_layer_input, {', '.join(sorted(names))} on device")
        return recompute_of(row, profile_of(row, "tpu"))

    less, more = again(kept | {also}), again(kept)
    assert all(a <= b for a, b in zip(less, more, strict=True))
    assert also in kept or less < more
    assert again(set()) == EVERYTHING


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
        ("PaxML", "2024", "gpu", "xla-gpu"),
        ("Megatron-Core", "2021", "gpu", "megatron-2021"),
        ("Megatron-Core", "2024", "gpu", "megatron"),
        ("Megatron-Core", None, "gpu", "megatron"),
        ("Megatron-Bridge / Megatron-Core", "25.11", "gpu", "megatron-bridge"),
        ("NeMo", "2024", "gpu", "megatron-bridge"),
        ("NeMo AutoModel (PyTorch FSDP2)", "2025", "gpu", "fsdp"),
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


@pytest.mark.parametrize(
    ("changes", "parameter", "moment", "reduce"),
    [
        ({}, 4, 4, 4),
        ({"weight_dtype": "bf16", "opt_state_dtype": "bf16"}, 2, 2, 4),
        ({"weight_dtype": "fp32"}, 4, 4, 4),
        ({"precision": "fp16 (fp16 gradients)"}, 4, 4, 2),
    ],
)
def test_bytes_of_state(changes, parameter, moment, reduce):
    found = choices(**changes)
    assert (found.parameter_bytes, found.moment_bytes, found.reduce_bytes) == (parameter, moment, reduce)


def test_sharding_is_as_the_run_says_then_as_its_axes_then_as_its_framework():
    assert choices(zero_stage=1).zero_stage == 1
    assert choices(fsdp=8, framework="Megatron-Core", date="2025").zero_stage == 3
    assert choices(fsdp=1, dp=8, framework="Megatron-Core", date="2025").zero_stage == 1
    assert choices(fsdp=1, dp=8, framework="Megatron-Core", date="2021").zero_stage == 0


def test_context_ranks_are_balanced_where_two_halves_or_a_later_framework_do_it():
    """Zig-zag needs 2 n parts of a sequence; torchtitan has it since 2025, Megatron always."""
    assert choices(cp=8, date="2024-10").context_balanced == 0
    assert choices(cp=8, date="2025-03").context_balanced == 1
    assert choices(cp=2, date="2024-10").context_balanced == 1
    assert choices(cp=8, date="2024-10", framework="Megatron-Core").context_balanced == 1


def test_tokens_cross_once_a_node_since_2025_in_megatron():
    megatron = {"framework": "Megatron-Core"}
    assert choices(**megatron, date="2025-06").once_a_node == 1
    assert choices(**megatron, date="2024-06").once_a_node == 0
    assert choices(**megatron, date="2025-06", moe_dispatch="all-to-all").once_a_node == 0
    assert choices(date="2025-06").once_a_node == 0


def test_offloaded_bytes():
    """Layer inputs of 4096 and queries, keys, values of 4096 + 2 x 1024 elements of two bytes."""
    found = choices(remat="custom: decoder_layer_input and q/k/v proj offloaded to host")
    assert found.offloaded == 2 * (4096 + 4096 + 2048)
