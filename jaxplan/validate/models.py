"""The shape of a published run's model, as the formulas take it."""

from __future__ import annotations

from jaxplan.estimate.shapes.facts import Model
from jaxplan.validate.published import PublishedModel

NO_WINDOW = 1e12
WIDEST = 10**8
NEEDED = ("layers", "d_model", "d_ff", "heads", "vocab")


class Unpredictable(Exception):
    """A run of which too little is known; its text is the reason."""


def model_of(published: PublishedModel) -> Model:
    """The model's sizes.

    Raises:
        Unpredictable: a size is missing, or no model has such sizes.
    """
    missing = [name for name in NEEDED if getattr(published, name) is None]
    if missing:
        raise Unpredictable(f"the source gives no {', '.join(f'model.{name}' for name in missing)}")
    m = published
    if wrong := _impossible(m):
        raise Unpredictable(wrong)
    assert m.layers is not None and m.d_model is not None and m.d_ff is not None
    assert m.heads is not None and m.vocab is not None
    head_dim = m.head_dim or m.d_model // m.heads
    latent = bool(m.kv_lora_rank)
    moe = _moe_layers(m)
    windowed = _windowed(m)
    return Model(
        layers=m.layers,
        dense_layers=m.layers - moe,
        moe_layers=moe,
        mtp_layers=m.mtp_layers or 0,
        embed=m.d_model,
        mlp=m.d_ff,
        mlp_matrices=m.mlp_matrices or 3,
        heads=m.heads,
        kv_heads=m.kv_heads or m.heads,
        qk_dim=(m.qk_nope_head_dim or head_dim) + (m.qk_rope_head_dim or 0) if latent else head_dim,
        v_dim=(m.v_head_dim or head_dim) if latent else head_dim,
        query_rank=(m.q_lora_rank or 0) if latent else 0,
        kv_rank=m.kv_lora_rank or 0,
        rope_dim=(m.qk_rope_head_dim or 0) if latent else 0,
        vocab=m.vocab,
        tied=float(bool(m.tied_embeddings)),
        experts=m.experts or 0,
        top_k=(m.top_k or 1) if m.experts else 0,
        expert_mlp=(m.moe_d_ff or m.d_ff) if m.experts else 0,
        shared_mlp=(m.shared_experts or 0) * (m.moe_d_ff or m.d_ff) if m.experts else 0,
        window=m.sliding_window or NO_WINDOW,
        windowed=windowed,
    )


def _impossible(m: PublishedModel) -> str | None:
    """Why no model has these sizes; None where one may."""
    layers, heads, experts = m.layers or 0, m.heads or 0, m.experts or 0
    if (m.first_dense_layers or 0) > layers:
        return f"{m.first_dense_layers} dense layers first, of {layers}"
    if (m.kv_heads or 0) > heads:
        return f"{m.kv_heads} key heads, more than the {heads} of queries"
    if experts and (m.top_k or 0) > experts:
        return f"a token goes to {m.top_k} of {experts} experts"
    if not m.head_dim and heads > (m.d_model or 0):
        return f"{heads} heads on a width of {m.d_model}"
    dims = (m.head_dim or 1, (m.qk_nope_head_dim or 0) + (m.qk_rope_head_dim or 0), m.v_head_dim or 0)
    if heads * max(dims) > WIDEST:
        return f"{heads} heads of {max(dims)}"
    return None


def _moe_layers(m: PublishedModel) -> int:
    if not m.experts or m.layers is None:
        return 0
    return (m.layers - (m.first_dense_layers or 0)) // (m.moe_layer_step or 1)


def _windowed(m: PublishedModel) -> float:
    """Share of the layers that attend to a window: by a number, every second, or five of six where the words say so."""
    if not m.sliding_window:
        return 0.0
    pattern = str(m.sliding_window_pattern or "")
    if pattern.isdecimal() and int(pattern):
        return 1 - 1 / int(pattern)     # as configurations count: every nth layer is global
    words = f"{pattern} {m.note or ''}"
    if "5 local" in words or "5:1" in words:
        return 5 / 6
    return 0.5
