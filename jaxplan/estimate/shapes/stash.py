"""Bytes of activations of one layer, one microbatch: what stays for the backward pass, and what is alive inside it.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4: with dropout and attention that is not fused a layer keeps
s b h (10 + 24/t + 5 a s / (h t)) bytes (equation 2), and s b h (34/t + 5 a s / (h t)) with sequence parallelism
(equation 4). Fused attention keeps no scores (Dao et al. 2022, arXiv:2205.14135); without dropout no masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.keeping import Keeping, Kept

HALF = 2.0    # bytes of bfloat16 and float16
#: Bytes of one element of the masks of one-hot dispatch: combine weights in float32 and the mask itself.
ROUTE = 4.0 + 2.0
FULL = Kept(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)


@dataclass(frozen=True)
class Widths:
    """Bytes of one token and layer on one device, each kind of value, all of it kept."""

    residual: Number
    masks: Number
    norms: Number
    qkv: Number
    scores: Number
    core: Number
    wide: Number
    product: Number
    narrow: Number
    dispatch: Number


def widths(facts: Facts, keeping: Keeping, moe: bool) -> Widths:
    model, layout = facts.model, facts.layout
    tensor = layout.tensor
    spread = keeping.spread
    linear = keeping.linear_bytes
    latent = model.query_rank + model.kv_rank + model.rope_dim
    if moe:
        copies = model.top_k * keeping.routed
        inner = copies * model.expert_mlp / keeping.expert_tensor + model.shared_mlp / tensor
        outer = copies * model.embed
    else:
        inner, outer = model.mlp / tensor, np.zeros_like(model.embed * 1.0)
    query_key_value = (model.query_width + model.kv_width) / tensor + np.where(model.kv_rank > 0, latent, 0.0)
    one_hot = facts.choices.one_hot * (1.0 if moe else 0.0)
    return Widths(
        residual=HALF * model.embed / spread,
        masks=2 * keeping.mask_bytes * model.embed / spread,
        norms=2 * linear * model.embed / spread + outer * linear,
        qkv=HALF * query_key_value,
        scores=keeping.score_bytes * model.heads / tensor * layout.seq,
        core=linear * model.heads * model.v_dim / tensor,
        wide=HALF * (model.mlp_matrices - 1) * inner,
        product=linear * inner,
        narrow=HALF * np.where(outer > 0, outer, model.embed / spread),
        dispatch=one_hot * ROUTE * model.top_k * keeping.routed * layout.seq + keeping.sorted_again * HALF * outer,
    )


def kept_bytes(facts: Facts, keeping: Keeping, kept: Kept, moe: bool) -> Number:
    """Of one layer and microbatch, by shares kept; dense or of experts."""
    return _kept(widths(facts, keeping, moe), kept) * facts.layout.tokens


def _kept(w: Widths, kept: Kept) -> Number:
    """Of one token."""
    return (
        kept.inputs * w.residual
        + kept.after_attention * w.residual
        + kept.norms * (w.norms + w.masks)
        + kept.qkv * w.qkv
        + kept.scores * w.scores
        + kept.core * w.core
        + kept.wide * w.wide
        + kept.product * w.product
        + kept.narrow * w.narrow
    )


def live_bytes(facts: Facts, keeping: Keeping, moe: bool) -> Number:
    """At the peak of one layer's backward pass: its values, those that a policy dropped again, and their gradients."""
    w, tokens = widths(facts, keeping, moe), facts.layout.tokens
    everything = _kept(w, FULL) * tokens
    if moe:
        everything = everything + (w.narrow + w.dispatch) * tokens
    dropped = np.maximum(everything - _kept(w, keeping.kept) * tokens, 0.0)
    return dropped + keeping.alive * everything
