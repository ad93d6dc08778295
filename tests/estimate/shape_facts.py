"""One run as the formulas take it, round numbers, for tests that change a field or two."""

from dataclasses import replace

from jaxplan.estimate.shapes.facts import Chip, Choices, Facts, Group, Habits, Layout, Model
from jaxplan.estimate.shapes.rates import Rates

ALONE = Group(1, 1.0, 0, 0.0, 1.0, 0.0, 0.0)
LINK = Group(8, 100e9, 0.0, 1e-5, 100e9, 2e-5, 0.0)
MODEL = Model(
    layers=8, dense_layers=8, moe_layers=0, mtp_layers=0, embed=4096, mlp=16384, mlp_matrices=3, heads=32, kv_heads=8,
    qk_dim=128, v_dim=128, query_rank=0, kv_rank=0, rope_dim=0, vocab=32000, tied=0, experts=0, top_k=0, expert_mlp=0,
    shared_mlp=0, window=1e12, windowed=0,
)  # fmt: skip
MIXTURE = replace(MODEL, dense_layers=0, moe_layers=8, experts=64, top_k=8, expert_mlp=2048)
LAYOUT = Layout(
    devices=8, data=1, fsdp=1, tensor=1, context=1, stage=1, repeats=1, expert=1, expert_own=0, micro_batch=2,
    microbatches=4, seq=4096, nodes=1, tensor_group=ALONE, context_group=ALONE, fsdp_group=ALONE,
    expert_fsdp_group=ALONE, data_group=ALONE, expert_data_group=ALONE, expert_group=ALONE, expert_network=ALONE,
    send_group=ALONE,
)  # fmt: skip
GPU = Chip(
    tpu=0, flops_per_s=1e15, narrow_flops_per_s=2e15, hbm_bytes_per_s=3e12, host_bytes_per_s=5e10, cores=132, tile=128,
    capacity_bytes=8e10,
)  # fmt: skip
TPU = replace(GPU, tpu=1, flops_per_s=2e14)
CHOICES = Choices(
    recompute_mlp=0, recompute_qkv=0, recompute_out=0, recompute_core=0, recompute_rest=0, offloaded=0, narrow=0,
    capacity=1, one_hot=0, grouped=0, once_a_node=0, ragged=0, trained=1, zero_stage=0, reshard=1, sequence_parallel=1,
    compiled=0, graphs=1, tensor_overlap=0, expert_overlap=0, context_balanced=1, parameter_bytes=4, moment_bytes=4,
    reduce_bytes=4,
)  # fmt: skip
HABITS = Habits(
    fused_attention=1, causal_attention=1, loss_bytes_per_logit=12, kernels_per_layer=0, overlaps_reduce=1,
    overlaps_send=0, uneven_stages=0,
)  # fmt: skip
#: Everything at the data sheet's rate, nothing hidden, nothing lost.
IDEAL = Rates(
    matmul=1, narrow_matmul=1, sustained=1, attention=1, grouped=1, memory=1, link=1, network=1, exchange=1, passes=1,
    state_overlap=0, tensor_overlap=0, expert_overlap=0, launch_s=0, launches=1, host_s=0, latency=1, fixed_s=0,
    wave=0, saturation=0, narrow_saturation=0, misaligned=1, imbalance=1, host_link=1, jitter=0, scores=1,
    tensor_link=1, dcn_overlap=0,
)  # fmt: skip
FACTS = Facts(MODEL, LAYOUT, GPU, CHOICES, HABITS)


def facts(model=MODEL, chip=GPU, habits=HABITS, choices=None, **layout):
    """The facts with another model or chip, choices given as a mapping, and fields of the layout by name."""
    return Facts(model, replace(LAYOUT, **layout), chip, replace(CHOICES, **(choices or {})), habits)
