"""Peak memory of one device, as a ledger that adds up: arrays over runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.in_flight import Stage, stages
from jaxplan.estimate.shapes.keeping import LAST, Keeping
from jaxplan.estimate.shapes.stash import HALF, kept_bytes, live_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes of one device by ledger line, each an array over runs; `value` is their sum."""

    ledger: Mapping[str, Number]

    @property
    def value(self) -> Number:
        return sum(self.ledger.values())


@dataclass(frozen=True)
class Weights:
    """Parameters on one stage of one device, before anything shards them further, and how far it is sharded.

    Attributes:
        dense, experts: all of the stage; layer: the widest layer; tables: embedding and head; table: one of the two.
        dense_shards, expert_shards: of parameters and gradients; dense_ranks, expert_ranks: of the optimizer's state.
    """

    dense: Number
    experts: Number
    dense_layer: Number
    expert_layer: Number
    tables: Number
    table: Number
    dense_shards: Number
    expert_shards: Number
    dense_ranks: Number
    expert_ranks: Number

    def held(self) -> Number:
        return self.dense / self.dense_shards + self.experts / self.expert_shards

    def state(self) -> Number:
        return self.dense / self.dense_ranks + self.experts / self.expert_ranks


def weights_of(facts: Facts, keeping: Keeping, stage: Stage) -> Weights:
    """ZeRO-1 splits the state over data and context ranks, experts' over those that hold the same experts (distributed
    optimizer of Megatron-Core, docs "dist_optimizer": 6 + 12/d bytes a parameter). FSDP splits everything; an XLA
    program also over an expert axis.
    """
    model, layout = facts.model, facts.layout
    tensor, expert = layout.tensor, layout.expert
    own = layout.expert_own > 0
    plain = model.attention_parameters / tensor
    dense_layer = np.where(stage.dense > 0, plain + model.dense_mlp_parameters / tensor, 0.0)
    mixed_layer = np.where(stage.moe > 0, plain + model.shared_parameters / tensor, 0.0)
    expert_layer = np.where(stage.moe > 0, model.experts_parameters / (expert * keeping.expert_tensor), 0.0)
    table = model.vocab * model.embed / tensor
    tables = table * (stage.embedding + stage.head - stage.embedding * stage.head * model.tied)
    # how many ranks share what is held between steps
    shards, ranks = layout.fsdp * layout.context, layout.data * layout.context * layout.fsdp
    whole = keeping.sharded == 0
    inside = np.where(own, 1.0, expert)
    dense_shards = np.where(whole, 1.0, shards * np.where((keeping.xla > 0) & own, expert, 1.0))
    expert_shards = np.where(whole, 1.0, np.maximum(1.0, shards / inside))
    same_experts = np.maximum(1.0, ranks * np.where(own, 1.0, tensor / keeping.expert_tensor) / inside)
    split = keeping.split_state > 0
    return Weights(
        dense=stage.dense * dense_layer + stage.moe * mixed_layer + tables,
        experts=stage.moe * expert_layer,
        dense_layer=np.maximum(dense_layer, mixed_layer),
        expert_layer=expert_layer,
        tables=tables,
        table=table,
        dense_shards=dense_shards,
        expert_shards=expert_shards,
        dense_ranks=np.where(split, ranks, dense_shards),
        expert_ranks=np.where(split, same_experts, expert_shards),
    )


def gathered_bytes(facts: Facts, keeping: Keeping, weights: Weights) -> Number:
    """Weights that are gathered, in half precision, and gradients that are not yet scattered.

    FSDP2 has the layer at work and the next one; with a pipeline it keeps all of a stage gathered over the
    microbatches, and whole gradients beside them. The tables of embedding and head are gathered beside all
    else in an eager program.
    """
    dense, experts = (1.0 * ((keeping.sharded > 0) & (n > 1)) for n in (weights.dense_shards, weights.expert_shards))
    layer = np.minimum(weights.dense_layer * dense + weights.expert_layer * experts, keeping.most_gathered)
    all_of_it = weights.dense * dense + weights.experts * experts
    tables = np.where(keeping.xla > 0, 0.0, weights.tables * dense)
    few = np.minimum(keeping.layers_gathered * layer, keeping.most_gathered) + tables
    held = keeping.held_gathered > 0
    values = HALF * np.where(held | (keeping.stays_gathered > 0), all_of_it, few)
    gradients = np.where(held, all_of_it * keeping.gradient_bytes, layer * (HALF + keeping.reduce_bytes))
    return values + facts.choices.trained * gradients


def activation_bytes(facts: Facts, keeping: Keeping, stage: Stage) -> Number:
    dense = stage.dense * kept_bytes(facts, keeping, keeping.kept, False) * stage.dense_flying
    moe = stage.moe * kept_bytes(facts, keeping, keeping.kept, True) * stage.moe_flying
    return dense + np.where(stage.moe > 0, moe, 0.0)


def working_bytes(facts: Facts, keeping: Keeping, stage: Stage) -> Number:
    dense, moe = (live_bytes(facts, keeping, which) for which in (False, True))
    return np.maximum(np.where(stage.dense > 0, dense, 0.0), np.where(stage.moe > 0, moe, 0.0))


def loss_bytes(facts: Facts, keeping: Keeping, stage: Stage, weights: Weights) -> Number:
    """Logits and what the loss makes of them; they go before the head's gradient comes."""
    layout, sharded = facts.layout, 1.0 * ((keeping.sharded > 0) & (weights.dense_shards > 1))
    logits = layout.tokens * facts.model.vocab / layout.tensor * keeping.logit_bytes / keeping.vocab_tiles
    gradient = weights.table * (HALF + keeping.reduce_bytes) * sharded
    head = np.where(keeping.xla > 0, HALF * weights.table * sharded, 0.0)
    return stage.head * (np.maximum(logits * stage.loss_flying, gradient) + head)


def _ledger(facts: Facts, keeping: Keeping, stage: Stage) -> dict[str, Number]:
    trained = facts.choices.trained
    weights = weights_of(facts, keeping, stage)
    gathered = gathered_bytes(facts, keeping, weights)
    working = working_bytes(facts, keeping, stage)
    gradients = trained * keeping.gradient_copies * keeping.gradient_bytes * weights.held()
    loss = loss_bytes(facts, keeping, stage, weights)
    # one compiled program: the backward pass of the layers comes after the loss, in the same bytes
    loss = np.where(keeping.xla > 0, np.maximum(loss - (working + gradients + gathered), 0.0), loss)
    activations = activation_bytes(facts, keeping, stage)
    return {
        "parameters": weights.held() * keeping.parameter_bytes,
        "gradients": gradients,
        "optimizer": trained * keeping.state_bytes * weights.state(),
        "activations": activations,
        "loss": loss,
        "gathered": gathered,
        "working": working,
        "slack": keeping.slack * (activations + loss + gathered + working),
        "outside": keeping.outside_bytes + 0 * working,
    }


def memory(facts: Facts, keeping: Keeping) -> Memory:
    """Peak bytes of one device: of the stage that needs most, or of the last one where the figure is of that."""
    found = [_ledger(facts, keeping, stage) for stage in stages(facts, keeping)]
    totals = np.stack([sum(ledger.values()) for ledger in found])
    last = (keeping.scope == LAST) | (facts.layout.stage <= 1)
    which = np.where(last, len(found) - 1, np.argmax(totals, axis=0))
    return Memory({line: np.choose(which, [one[line] for one in found]) for line in found[0]})
