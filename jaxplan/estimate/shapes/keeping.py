"""What a run keeps in memory: switches of its framework and of its configuration, as numbers or arrays over runs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.estimate.shapes.facts import Number

WORST, LAST = 0.0, 1.0


@dataclass(frozen=True)
class Kept:
    """Shares of a layer's values that stay on the device from the forward pass to the backward pass.

    Attributes:
        inputs: the layer's input, kept unless it goes to the host.
        norms: inputs of the projections (outputs of norms).
        after_attention: the residual sum between attention and feed-forward.
        qkv: queries, keys, values; scores: what attention that is not fused keeps of its scores; core: its outputs.
        wide: outputs of the first feed-forward matmuls; product: input of the last.
        narrow: output of the last, which only a policy by names keeps.
    """

    inputs: Number
    norms: Number
    after_attention: Number
    qkv: Number
    scores: Number
    core: Number
    wide: Number
    product: Number
    narrow: Number


@dataclass(frozen=True)
class Keeping:
    """Memory habits of one run.

    Attributes:
        xla: 1 where one compiled program holds everything and frees it by plan, 0 where an allocator does.
        sharded: 1 where parameters and gradients are sharded like the state (FSDP, XLA), 0 where they are whole.
        split_state: 1 where the optimizer's state is split over data-parallel ranks (ZeRO-1).
        parameter_bytes, gradient_bytes, state_bytes: of one trained parameter, state with master copies.
        gradient_copies: trees of gradients alive at once (an XLA program's gradients and the optimizer's updates).
        layers_gathered: layers whose gathered weights are alive at once: 2 where the next one is prefetched.
        stays_gathered: 1 where weights stay gathered from the forward to the backward pass.
        most_gathered: parameters that may be alive gathered (DeepSpeed's `stage3_max_live_parameters`).
        spread: degree by which the residual stream is split (sequence parallelism).
        mask_bytes: of a dropout mask's element; 0 without dropout.
        score_bytes: of one attention score, all that is kept of it (Korthikanti et al. 2022: softmax output, dropout
            mask, dropout output); 0 with fused attention.
        linear_bytes: of one kept element that is only an input of matmuls; 1 where it is kept in 8 bits.
        logit_bytes: of one logit at the loss's peak.
        alive: of a layer's values and their gradients, the share that is alive at once in its backward pass.
        held_gathered: 1 where gathered weights and whole gradients stay over all microbatches (FSDP under a pipeline).
        reduce_bytes: of one element of a gradient on its way into a reduce-scatter, beside the gradient itself.
        routed: copies of a token in buffers of experts, over `top_k`: the capacity, or the worst case of dropless ones.
        sorted_again: 1 where tokens are sorted by expert once more where they arrive, into a second buffer.
        expert_tensor: degree by which tensor parallelism splits an expert.
        circular_layers: layers in a circular pipeline that is differentiated as a whole; the others are on every stage.
        stage_slots: places that embedding and head take in the pipeline, as if they were layers.
        scope: which stage the figure is of: WORST or LAST.
        vocab_tiles: parts in which the loss is computed.
        slack, outside_bytes: over what is allocated: share of what comes and goes, and bytes, by the figure's kind.
    """

    kept: Kept
    xla: Number
    sharded: Number
    split_state: Number
    parameter_bytes: Number
    gradient_bytes: Number
    state_bytes: Number
    gradient_copies: Number
    layers_gathered: Number
    stays_gathered: Number
    most_gathered: Number
    spread: Number
    mask_bytes: Number
    score_bytes: Number
    linear_bytes: Number
    logit_bytes: Number
    alive: Number
    held_gathered: Number
    reduce_bytes: Number
    routed: Number
    sorted_again: Number
    expert_tensor: Number
    circular_layers: Number
    stage_slots: Number
    scope: Number
    vocab_tiles: Number
    slack: Number
    outside_bytes: Number
