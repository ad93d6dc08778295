"""Compute of one layer for one microbatch: forward, backward, and what the backward pass does again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.dense import feed_forward_s, projections_s
from jaxplan.estimate.shapes.experts import experts_s, moved_s
from jaxplan.estimate.shapes.facts import Chip, Facts, Number
from jaxplan.estimate.shapes.rates import Rates, stream_s, whole

# Matmuls of the backward core over the forward's two: five where scores are computed again (Dao 2023,
# arXiv:2307.08691, section 3.1), four where they were kept.
FLASH_BACKWARD = 2.5
PLAIN_BACKWARD = 2.0
WEIGHT_GRADIENT = 1.06
# A multiprocessor has 16 special function units (NVIDIA, CUDA C++ Programming Guide, throughput of native arithmetic
# instructions), each an exponential a clock; clocks under load are 1.4 (A100) to 1.9 GHz (B200).
EXPONENTIALS_PER_S = 16 * 1.75e9
LANES = 128                 # a TPU pads a head's width to its lanes
TPU_BLOCK = 512             # keys of one block of splash attention (MaxText, base.yml: sa_block_kv)
SCORE_BYTES = 13            # of unfused attention, per score: a matmul writes, softmax and dropout pass, a matmul reads


@dataclass(frozen=True)
class Passes:
    """Seconds of the forward, backward and repeated forward pass of one layer, for one microbatch."""

    forward: Number
    backward: Number
    again: Number


@dataclass(frozen=True)
class Layer:
    """Parts of a layer by what bounds them."""

    matmul: Passes
    attention: Passes
    memory: Passes
    launch: Passes

    def total(self) -> Passes:
        parts = (self.matmul, self.attention, self.memory, self.launch)
        return Passes(
            sum(part.forward for part in parts), sum(part.backward for part in parts), sum(part.again for part in parts)
        )


def core_s(facts: Facts, rates: Rates) -> tuple[Number, Number]:
    """The attention core, forward and backward: 2 M pairs N (qk + v) FLOPs, the causal half where it is fused."""
    model, layout, chip, habits = facts.model, facts.layout, facts.chip, facts.habits
    tpu = chip.tpu > 0
    diagonal = np.where(tpu, TPU_BLOCK / 2, 0)      # blocks on the diagonal are computed whole
    pairs = np.where(
        habits.causal_attention > 0, model.pairs(layout.seq) + diagonal, model.pairs(layout.seq, causal=False)
    )
    qk, v = (np.where(tpu, whole(width, LANES), width) for width in (model.qk_dim, model.v_dim))
    widths = np.maximum(qk + v, narrowest(chip))
    flops = 2 * layout.tokens * pairs * model.heads / layout.tensor * widths
    fused = flops / (chip.flops_per_s * rates.attention)
    scores = layout.tokens * layout.seq * model.heads / layout.tensor
    passes = stream_s(chip, rates, SCORE_BYTES * scores) * rates.scores
    plain = flops / (chip.flops_per_s * rates.matmul * rates.sustained) + passes
    crooked = np.where((layout.context > 1) & (facts.choices.context_balanced < 1), rates.imbalance, 1.0)
    fused = fused * crooked
    is_fused = habits.fused_attention > 0
    return np.where(is_fused, fused, plain), np.where(is_fused, FLASH_BACKWARD * fused, PLAIN_BACKWARD * plain)


def narrowest(chip: Chip) -> Number:
    """Widths of keys and values, together, under which a GPU's attention waits for the exponentials of its scores.

    A score takes 2 (qk + v) FLOPs and one exponential: on H100 they take equally long at 134, on B200 at 270 (Shah et
    al. 2024, arXiv:2407.08608, section 3.1, has 3.9e12 exponentials a second for 989e12 FLOPs on H100).
    """
    return np.where(chip.tpu > 0, 0.0, chip.flops_per_s / (2 * chip.cores * EXPONENTIALS_PER_S))


def streamed_bytes(facts: Facts, hidden: Number) -> Number:
    """Bytes that the memory-bound operations of a layer move, forward: norms, residuals, rotary, activation.

    Args:
        hidden: elements of feed-forward activations of one token on this device.
    """
    model, layout, choices = facts.model, facts.layout, facts.choices
    shared = np.where((choices.sequence_parallel > 0) | (facts.chip.tpu > 0), layout.tensor, 1)
    heads = model.query_width + np.where(model.kv_rank > 0, model.query_width, model.kv_heads * model.qk_dim)
    # reads and writes in 16 bits: two norms (4 D), two residuals (6 D), casts and gradients of inputs (3 D)
    residual, rotary = 26 * model.embed / shared, 8 * heads / layout.tensor
    return layout.tokens * (residual + rotary + (3 * model.mlp_matrices - 1) * hidden)


def layer(facts: Facts, rates: Rates, experts: bool) -> Layer:
    """One dense layer, or one of experts."""
    model, layout, choices, chip = facts.model, facts.layout, facts.choices, facts.chip
    qkv, out = projections_s(facts, rates)
    core, core_backward = core_s(facts, rates)
    aligned = np.where(np.mod(model.qk_dim, 8) > 0, rates.misaligned, 1.0)
    qkv, out = qkv / aligned, out / aligned
    if experts:
        mlp, moved = experts_s(facts, rates), moved_s(facts, rates)
        hidden = (model.top_k * model.expert_mlp + model.shared_mlp) / layout.tensor
    else:
        mlp, moved = feed_forward_s(facts, rates, model.mlp), 0.0
        hidden = model.mlp / layout.tensor
    mlp = mlp / aligned
    quantise = stream_s(chip, rates, 4 * layout.tokens * (3 * model.embed + hidden)) * choices.narrow
    memory = stream_s(chip, rates, streamed_bytes(facts, hidden)) * rates.passes + quantise + moved
    again = choices.recompute_mlp * mlp + choices.recompute_qkv * qkv + choices.recompute_out * out
    launch = facts.habits.kernels_per_layer * rates.launches * rates.launch_s
    # weight gradients accumulate in float32 on GPUs: 6% slower on A100 and B200 (MooreThreads/SimuMax, configs/system)
    backward = 1 + choices.trained * np.where(chip.tpu > 0, 1.0, WEIGHT_GRADIENT)
    return Layer(
        matmul=Passes(mlp + qkv + out, backward * (mlp + qkv + out), again),
        attention=Passes(core, core_backward, choices.recompute_core * core),
        memory=Passes(memory, 2 * memory, choices.recompute_rest * memory),
        launch=Passes(launch, 1.6 * launch, choices.recompute_rest * launch),
    )
