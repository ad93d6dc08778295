"""Experts: their matmuls, the dispatch of tokens, and the all-to-alls between devices."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.shapes.dense import feed_forward_s
from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.rates import ELEMENT_BYTES, Rates, matmul_s, stream_s

ROUTER_BYTES = 12       # per token and expert: logits, softmax and top-k in float32
PERMUTE_PASSES = 6      # over the tokens' copies: gather, scatter, weighting, each read and written


def chosen(facts: Facts) -> Number:
    """Rows that experts of one device compute for one microbatch."""
    return facts.layout.tokens * facts.model.top_k * facts.choices.capacity


def experts_s(facts: Facts, rates: Rates) -> Number:
    """Routed and shared experts of one layer, forward, with the one-hot matmuls that dispatch tokens where it is so."""
    model, layout, choices, chip = facts.model, facts.layout, facts.choices, facts.chip
    local = np.maximum(model.experts / layout.expert, 1)
    rows = np.maximum(chosen(facts) / local / layout.tensor, 1)
    relative = np.where(choices.grouped > 0, rates.grouped, 1.0)
    width = np.maximum(model.expert_mlp, 1)
    up = matmul_s(chip, rates, rows, model.embed, width, choices.narrow, relative)
    down = matmul_s(chip, rates, rows, width, model.embed, choices.narrow, relative)
    routed = local * ((model.mlp_matrices - 1) * up + down)
    shared = feed_forward_s(facts, rates, model.shared_mlp)
    return np.where(model.experts > 0, routed + shared + one_hot_s(facts, rates), 0.0)


def one_hot_s(facts: Facts, rates: Rates) -> Number:
    """Dispatch and combine as einsums with one-hot masks over a sequence: 4 S k c D FLOPs a token.

    Lepikhin et al. 2020, arXiv:2006.16668, algorithm 2; MaxText's "dense matmul".
    """
    model, layout, chip = facts.model, facts.layout, facts.chip
    flops = 4 * layout.tokens * layout.seq * model.top_k * facts.choices.capacity * model.embed
    return facts.choices.one_hot * flops / (chip.flops_per_s * rates.matmul * rates.sustained)


def moved_s(facts: Facts, rates: Rates) -> Number:
    """Router and permutation of tokens: passes over memory."""
    model = facts.model
    nbytes = facts.layout.tokens * model.experts * ROUTER_BYTES
    nbytes = nbytes + chosen(facts) * model.embed * ELEMENT_BYTES * PERMUTE_PASSES
    return stream_s(facts.chip, rates, nbytes)
