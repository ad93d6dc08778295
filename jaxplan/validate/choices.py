"""What a published run does with its program, read from the words of its source."""

from __future__ import annotations

from jaxplan.estimate.shapes.facts import Choices, Model
from jaxplan.validate.framework import Profile, year_of
from jaxplan.validate.published import PublishedRun

NARROW = ("fp8", "mxfp8", "nvfp4", "int8")
Recompute = tuple[float, float, float, float, float]    # feed-forward, qkv, output, core, rest
#: Chosen: of a layer of experts' launches, the share of each module that can be captured.
CAPTURED = {"attn": 0.33, "moe_router": 0.06, "moe_preprocess": 0.11}
NOTHING: Recompute = (0, 0, 0, 0, 0)
EVERYTHING: Recompute = (1, 1, 1, 1, 1)


def is_narrow(run: PublishedRun) -> bool:
    words = (run.precision or "").lower()
    return any(name in words for name in NARROW) and not words.startswith("fp32")


def recompute_of(run: PublishedRun, profile: Profile) -> Recompute:
    """Shares of the forward pass that the backward pass does again, by the policy's name.

    Names of MaxText are those of its `remat_policy` (documentation, "checkpointing"): `minimal` saves projections,
    `save_dot_except_mlp` all but the feed-forward's, `custom` the tensors that it names. Megatron's `selective` does
    the attention core again where it is not fused (Korthikanti et al. 2022, arXiv:2205.05198, section 5), torchtitan's
    `selective op` every second matmul.
    """
    words = (run.remat or "").lower()
    if not words:
        return profile.default_recompute
    if "every 2nd" in words:
        return (0.5, 0.5, 0.5, 0.5, 0.5)
    if words.startswith("full"):
        return EVERYTHING
    if words.startswith(("none", "activation")):
        return NOTHING
    if "selective op" in words:
        return (0.5, 0.5, 0.5, 0.0, 1.0)
    if "mla_up" in words:
        return (0.0, 0.5, 0.0, 0.0, 0.3)
    if words.startswith("selective"):
        if "mlp" in words:
            return (1.0, 0.0, 0.0, float("core" in words), 0.5)
        return (0.0, 0.0, 0.0, 1.0, 0.3)
    return _maxtext(words) or profile.default_recompute


def _maxtext(words: str) -> Recompute | None:
    if words.startswith("minimal_"):
        return (0.0, 0.0, 0.0, 0.0, 0.7)
    if words.startswith(("minimal", "dots", "offload dots")):
        return (0.0, 0.0, 0.0, 1.0, 0.7)
    if "except_mlpwi" in words:
        return (2 / 3, 0.0, 0.0, 1.0, 1.0)
    if "except_mlp" in words:
        return (1.0, 0.0, 0.0, 0.0 if "context" in words else 1.0, 1.0)
    if "save_out" in words:
        return (1.0, 1.0, 0.0, 1.0, 1.0)
    if "save_qkv" in words:
        return (1.0, 0.0, 1.0, 1.0, 1.0)
    if words.startswith("custom"):
        return (
            2 / 3 if "mlpwo" in words else 1.0,
            0.0 if "q/k/v" in words or "qkv" in words else 1.0,
            0.0 if "out_proj" in words else 1.0,
            0.0 if "context" in words else 1.0,     # the output projection's gradient needs its input
            1.0,
        )
    return None


def offloaded_bytes(run: PublishedRun, model: Model) -> float:
    """Bytes of one token and layer that go to the host's memory."""
    words = (run.remat or "").lower()
    if "offload" not in words:
        return 0.0
    width = 0.0
    if "layer_input" in words:
        width += model.embed
    if "q/k/v" in words or "qkv" in words:
        width += float(model.query_width + model.kv_width)
    if "out_proj" in words:
        width += model.embed
    if "mlpwo" in words:
        width += model.embed
    return 2 * width


def choices_of(run: PublishedRun, model: Model, profile: Profile, tpu: bool) -> Choices:
    mlp, qkv, out, core, rest = recompute_of(run, profile)
    dispatch, overlap = (run.moe_dispatch or "").lower(), (run.overlap_note or "").lower()
    notes = f"{run.layout_note or ''}".lower()
    one_hot = "dense matmul" in dispatch
    dropping = one_hot or "capacity" in dispatch
    balanced = profile.context_balanced or (run.cp or 1) <= 2 or (year_of(run) or 0) >= 2025
    stays = "not reshard" in notes or "never" in notes
    zero = run.zero_stage if run.zero_stage is not None else (3 if (run.fsdp or 1) > 1 else profile.zero_stage)
    return Choices(
        recompute_mlp=mlp,
        recompute_qkv=qkv,
        recompute_out=out,
        recompute_core=core,
        recompute_rest=rest,
        offloaded=offloaded_bytes(run, model),
        narrow=float(is_narrow(run)),
        capacity=run.capacity_factor or 1.0,
        one_hot=float(one_hot),
        grouped=float(bool(run.model.experts) and not dropping),
        once_a_node=float(_once_a_node(run, dispatch, profile)),
        ragged=float("ragged" in dispatch),
        trained=0.0 if run.task == "lora" else 1.0,
        zero_stage=zero,
        reshard=float(zero >= 3 and not stays),
        sequence_parallel=float(bool(run.sequence_parallel) or tpu or profile.sequence_parallel),
        compiled=float(bool(run.compile)),
        graphs=_graphs(overlap, profile),
        tensor_overlap=float("tp" in overlap or profile.tensor_overlap),
        expert_overlap=float("all-to-all overlap" in overlap),
        context_balanced=float(balanced),
        parameter_bytes=_bytes(run.weight_dtype, profile.parameter_bytes),
        moment_bytes=2.0 if (run.opt_state_dtype or "").startswith("bf16") else 4.0,
        reduce_bytes=_reduce_bytes(run, profile),
    )


def _once_a_node(run: PublishedRun, dispatch: str, profile: Profile) -> bool:
    """DeepEP and HybridEP; Megatron's dispatcher since 2025 where a source does not name another."""
    if dispatch:
        return "deepep" in dispatch or "hybridep" in dispatch
    return profile.dispatches_once and (year_of(run) or 0) >= 2025


def _graphs(overlap: str, profile: Profile) -> float:
    """The share of launches that graphs spare the host: all of a whole iteration, or those of captured modules."""
    if profile.whole_program or "full_iteration" in overlap:
        return 1.0
    return sum(share for name, share in CAPTURED.items() if name in overlap) if "cuda graph" in overlap else 0.0


def _bytes(dtype: str | None, otherwise: float) -> float:
    return {"bf16": 2.0, "fp32": 4.0}.get(dtype or "", otherwise)


def _reduce_bytes(run: PublishedRun, profile: Profile) -> float:
    words = (run.precision or "").lower()
    if words.startswith("fp16 (fp16"):
        return 2.0
    return profile.reduce_bytes
