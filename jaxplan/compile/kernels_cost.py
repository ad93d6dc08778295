"""Matmul FLOPs of custom calls: library matmuls and convolutions, cuDNN attention, and Pallas kernels.

Opaque causal attention is counted by one convention on every backend: two matmuls forward, five backward
(scores anew, gradients of values, probabilities, queries and keys), each over half of the square of
positions. What a kernel computes beyond its mask's edge is its own inefficiency, not work. A kernel without a
mask (a block of ring attention) counts whole.
"""

from __future__ import annotations

import math

from jaxplan.compile.convolution_cost import convolution_flops, is_convolution
from jaxplan.compile.hlo import HloError, Instruction

MATMUL, ATTENTION_FORWARD, ATTENTION_BACKWARD, KERNEL = (
    "matmul",
    "attention_forward",
    "attention_backward",
    "kernel",
)

# Custom calls that compute nothing: buffers, layout hints, and the marks around asynchronous collectives.
BOOKKEEPING = frozenset(
    (
        "AllocateBuffer",
        "AllocateScopedMemory",
        "AssumeGatherIndicesInBound",
        "AsyncCollectiveDone",
        "AsyncCollectiveStart",
        "ConcatBitcast",
        "CreateBuffer",
        "GatherScatterIndicesBitpacked",
        "Pin",
        "PrepareAsyncCallDone",
        "PrepareAsyncCallStart",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "SliceBitcast",
        "SliceId",
        "Unpin",
        "ZeroCrop",
        "annotate_device_placement",
    )
)
_FLOATS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")


def custom_call_flops(call: Instruction) -> tuple[str, float] | None:
    """(kind, FLOPs of one execution) of a custom call; None where it is not known what it computes.

    Bookkeeping calls count as ("matmul", 0.0).
    """
    target = call.custom_call_target
    if target in BOOKKEEPING:
        return MATMUL, 0.0
    if target.startswith("__cublas$"):
        return MATMUL, _cublas_flops(call)
    if is_convolution(target):
        return MATMUL, convolution_flops(call)
    if target.startswith("__cudnn$fmha"):
        return _cudnn_attention_flops(call)
    if target == "tpu_custom_call":
        return _pallas_flops(call)
    return None


def attention_flops(
    batch_heads: int,
    query: int,
    key: int,
    key_dim: int,
    value_dim: int,
    matmuls: tuple[int, int],
    causal: bool,
) -> float:
    """FLOPs of fused attention.

    Args:
        batch_heads: sequences times query heads.
        query, key: positions of queries and of keys.
        key_dim, value_dim: head dimension of queries and keys, and of values.
        matmuls: how many matmuls run over `key_dim` and over `value_dim`: (1, 1) forward, (3, 2) backward.
        causal: half of the square of positions.
    """
    square = 2.0 * batch_heads * query * key * (0.5 if causal else 1.0)
    return square * (matmuls[0] * key_dim + matmuls[1] * value_dim)


def _cublas_flops(call: Instruction) -> float:
    """2 x result elements x contracted size, from the dot dimension numbers in the call's config."""
    config = call.config.get("gemm_backend_config", call.config)
    numbers = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
    if not isinstance(numbers, dict):
        raise HloError(f"{call.name} ({call.custom_call_target}) carries no dot_dimension_numbers")
    left = call.operand(0).shape.dims
    contracted = math.prod(left[int(dim)] for dim in numbers.get("lhs_contracting_dimensions", ()))
    return 2.0 * call.shape.elements * contracted


def _cudnn_attention_flops(call: Instruction) -> tuple[str, float] | None:
    """From the shape of the scores [batch, heads, queries, keys] that the call's config records."""
    config = call.config.get("cudnn_fmha_backend_config", {})
    scores = [int(size) for size in config.get("intermediate_tensor_shape", {}).get("dimensions", ())]
    if len(scores) != 4:
        return None
    batch, heads, query, key = scores
    key_dim = call.operand(0).shape.elements // (batch * heads * query)
    value_dim = call.operand(2).shape.dims[-1]
    backward = "Backward" in call.custom_call_target
    causal = "CAUSAL" in str(config.get("mask_type", ""))
    flops = attention_flops(
        batch * heads, query, key, key_dim, value_dim, (3, 2) if backward else (1, 1), causal
    )
    return (ATTENTION_BACKWARD if backward else ATTENTION_FORWARD), flops


def _pallas_flops(call: Instruction) -> tuple[str, float] | None:
    """Splash and flash attention by operand shapes; other kernels by their author's estimate, if any."""
    name = f"{call.name} {call.op_name}".lower()
    if "splash" in name or "flash" in name:
        return _splash_flops(call, name)
    estimate = call.config.get("custom_call_config", {}).get("cost_estimate", {})
    flops = float(estimate.get("flops", 0)) if isinstance(estimate, dict) else 0.0
    return (KERNEL, flops) if flops > 0 else None


def _splash_flops(call: Instruction, name: str) -> tuple[str, float] | None:
    """Splash attention takes q [..., heads, queries, dim], k and v [..., kv_heads, keys, dim] after its
    mask tables.

    The unfused backward pass runs two kernels that both recompute scores and their gradient: 3 matmuls for
    dq, 4 for dkv. With a mask they also read positions, segments or mask blocks, which are integers; without one
    only the two tables of blocks are.
    """
    tensors = [
        operand.shape.dims
        for operand in call.operands
        if operand.shapes and operand.shape.dtype in _FLOATS and len(operand.shape.dims) >= 3
    ]
    if len(tensors) < 3:
        return None
    query, key, value = tensors[:3]
    if "dkv" in name:
        # The fused kernel also writes a partial dq for each block of keys: one dim more than q.
        fused = any(len(shape.dims) == len(query) + 1 for shape in call.shapes)
        matmuls = (3, 2) if fused else (2, 2)
    elif "_dq" in name:
        matmuls = (2, 1)
    else:
        matmuls = (1, 1)
    tables = sum(bool(operand.shapes) and operand.shape.dtype not in _FLOATS for operand in call.operands)
    flops = attention_flops(
        math.prod(query[:-2]), query[-2], key[-2], query[-1], value[-1], matmuls, causal=tables > 2
    )
    return (ATTENTION_FORWARD if matmuls == (1, 1) else ATTENTION_BACKWARD), flops
