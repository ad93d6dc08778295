"""Dense matmuls of a layer: projections of attention, feed-forward."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.rates import Rates, matmul_s


def projections_s(facts: Facts, rates: Rates) -> tuple[Number, Number]:
    """Query-key-value projections and output projection, forward."""
    model, layout, choices, chip = facts.model, facts.layout, facts.choices, facts.chip
    rows, d, t, n = layout.tokens, model.embed, layout.tensor, model.heads

    def one(inner: Number, columns: Number) -> Number:
        return np.where(
            inner * columns > 0,
            matmul_s(chip, rates, rows, np.maximum(inner, 1), np.maximum(columns, 1), choices.narrow),
            0.0,
        )

    plain = one(d, (n * model.qk_dim + model.kv_heads * (model.qk_dim + model.v_dim)) / t)
    queries = np.where(
        model.query_rank > 0,
        one(d, model.query_rank) + one(model.query_rank, n * model.qk_dim / t),
        one(d, n * model.qk_dim / t),
    )
    nope = model.qk_dim - model.rope_dim
    latent = queries + one(d, model.kv_rank + model.rope_dim) + one(model.kv_rank, n * (nope + model.v_dim) / t)
    return np.where(model.kv_rank > 0, latent, plain), one(n * model.v_dim / t, d)


def feed_forward_s(facts: Facts, rates: Rates, width: Number) -> Number:
    """A dense feed-forward of that width, forward."""
    model, choices, chip = facts.model, facts.choices, facts.chip
    rows, wide = facts.layout.tokens, np.maximum(width / facts.layout.tensor, 1)
    up = matmul_s(chip, rates, rows, model.embed, wide, choices.narrow)
    down = matmul_s(chip, rates, rows, wide, model.embed, choices.narrow)
    return np.where(width > 0, (model.mlp_matrices - 1) * up + down, 0.0)
