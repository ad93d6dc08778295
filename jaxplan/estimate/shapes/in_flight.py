"""What each stage of a pipeline has: layers, tables, and microbatches whose activations it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.keeping import Keeping


@dataclass(frozen=True)
class Stage:
    """What lies on one stage.

    Attributes:
        dense, moe: layers; embedding, head: 1 where the stage has it.
        dense_flying, moe_flying: microbatches of which it keeps activations;
        loss_flying: of which it computes the loss at once.
    """

    dense: Number
    moe: Number
    embedding: Number
    head: Number
    dense_flying: Number
    moe_flying: Number
    loss_flying: Number


def flying(facts: Facts, index: Number) -> Number:
    """Microbatches of which stage `index` keeps activations.

    1F1B: p - i. Interleaved: 2 (p - i - 1) + (v - 1) p + 1 chunks of 1/v of a stage (Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2): p (1 + (p - 1) / (p v)) on the first (Korthikanti et al. 2022, section 4.2.3).
    """
    p, v, n = facts.layout.stage, facts.layout.repeats, facts.layout.microbatches
    chunks = (2 * (p - index - 1) + (v - 1) * p + 1) / v
    scheduled = np.minimum(n, np.where(v > 1, chunks, p - index))
    return np.where(p > 1, scheduled, 1.0)


def stages(facts: Facts, keeping: Keeping) -> tuple[Stage, ...]:
    """The first, one in the middle, the last, of whole layers; under a circular schedule all are alike."""
    model, p = facts.model, facts.layout.stage
    layers = model.layers + 2 * keeping.stage_slots
    ends = np.where(p > 1, np.floor(layers / p) - keeping.stage_slots, model.layers)
    inner = np.where(p > 2, np.ceil(layers / p), ends)
    one = np.ones_like(ends)
    alone = np.where(p > 1, 0.0, 1.0)
    return (
        _stage(facts, keeping, 0 * one, ends, 0 * one, one, alone),
        _stage(facts, keeping, np.where(p > 2, 1, 0), inner, ends, 0 * one, alone),
        _stage(facts, keeping, p - 1, ends, model.layers - ends, alone, one),
    )


def _stage(
    facts: Facts, keeping: Keeping, index: Number, n: Number, before: Number, embedding: Number, head: Number
) -> Stage:
    model, p, count = facts.model, facts.layout.stage, facts.layout.microbatches
    expert = model.moe_layers > 0
    first = expert & (2 * model.dense_layers < model.layers)    # few dense layers stand first, many alternate
    dense = np.where(first, np.clip(model.dense_layers - before, 0, n), n * model.dense_layers / model.layers)
    moe = n - dense + np.where(expert, model.mtp_layers, 0) * head
    plain = flying(facts, index)
    # a circular schedule: every stage has its share of the pipelined layers and all of the others, whose batch is
    # split over the stages; values of all iterations stay, those of the bubble too
    circular = keeping.circular_layers > 0
    kind, other = np.where(expert, model.moe_layers, model.dense_layers), np.where(expert, model.dense_layers, 0)
    piped, rest = keeping.circular_layers / p, kind - keeping.circular_layers
    around = (piped * (count + (p - 1) / facts.layout.repeats) + rest * count / p) / np.maximum(piped + rest, 1)
    some = np.where(expert, other, piped + rest)
    return Stage(
        dense=np.where(circular, some, dense),
        moe=np.where(circular, np.where(expert, piped + rest, 0), moe),
        embedding=np.where(circular, 1.0, embedding),
        head=np.where(circular, 1.0, head),
        dense_flying=np.where(circular, np.where(expert, count / p, around), plain),
        moe_flying=np.where(circular, around, plain),
        loss_flying=np.where(circular, count / p, 1.0),
    )
