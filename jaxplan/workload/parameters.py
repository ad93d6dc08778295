"""How many parameters a model shape has, in closed form. No JAX here.

Legend as in `ModelShape`: layers L, embed D, mlp F, heads N, kv_heads K, head_dim H, vocab V. Every trained
array of the published implementations is counted, norms and biases too, tied arrays once; buffers (rotary
tables) are not.
"""

from __future__ import annotations

from jaxplan.workload.shape import ExpertShape, LatentAttentionShape, ModelShape


def parameter_count(shape: ModelShape) -> int:
    """All parameters of a model, to the last one."""
    dense = shape.layers if shape.experts is None else shape.experts.first_dense_layers
    feed_forward = dense * dense_feed_forward(shape)
    if shape.experts is not None:
        feed_forward += (shape.layers - dense) * expert_feed_forward(
            shape, shape.experts, shape.experts.experts
        )
    return _outside_feed_forward(shape) + feed_forward


def active_parameter_count(shape: ModelShape) -> int:
    """Parameters that one token meets: all of a dense model, `top_k` of the experts otherwise (embeddings
    included)."""
    if shape.experts is None:
        return parameter_count(shape)
    dense = shape.experts.first_dense_layers
    routed = (shape.layers - dense) * expert_feed_forward(shape, shape.experts, shape.experts.top_k)
    return _outside_feed_forward(shape) + dense * dense_feed_forward(shape) + routed


def embedding_parameters(shape: ModelShape) -> int:
    """The token table V D, the output matrix V D unless it is the same array, and learned positions."""
    tables = 1 if shape.tied_embeddings else 2
    positions = shape.max_positions * shape.embed if shape.positions == "learned" else 0
    return tables * shape.vocab * shape.embed + positions


def norm_parameters(shape: ModelShape) -> int:
    """One norm over D: a scale, and LayerNorm's bias."""
    return shape.embed * (2 if shape.norm == "layernorm" else 1)


def attention_parameters(shape: ModelShape) -> int:
    """Projections of one layer's attention: 2 D N H + 2 D K H, with biases and query/key norms where the
    shape has them."""
    if shape.latent_attention is not None:
        return latent_attention_parameters(shape, shape.latent_attention)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = shape.embed * (2 * queries + 2 * keys)
    biases = (queries + 2 * keys) * shape.attention_bias + shape.embed * shape.output_bias
    return weights + biases + 2 * shape.head_dim * shape.qk_norm


def latent_attention_parameters(shape: ModelShape, latent: LatentAttentionShape) -> int:
    """Multi-head latent attention (arXiv:2405.04434, section 2.1 and appendix C): down, norm, up, for queries
    and for keys and values; the rotary key is shared by all heads. A query rank of 0 projects queries
    directly."""
    query_width = shape.heads * (latent.nope_head_dim + latent.rope_head_dim)
    if latent.query_rank:
        queries = shape.embed * latent.query_rank + latent.query_rank + latent.query_rank * query_width
    else:
        queries = shape.embed * query_width
    down = shape.embed * (latent.kv_rank + latent.rope_head_dim) + latent.kv_rank
    up = latent.kv_rank * shape.heads * (latent.nope_head_dim + latent.value_head_dim)
    return queries + down + up + shape.heads * latent.value_head_dim * shape.embed


def dense_feed_forward(shape: ModelShape) -> int:
    """One dense feed-forward: 3 D F where gated, 2 D F otherwise, with biases where the shape has them."""
    ups = 2 if shape.gated else 1
    return (ups + 1) * shape.embed * shape.mlp + (ups * shape.mlp + shape.embed) * shape.mlp_bias


def expert_feed_forward(shape: ModelShape, experts: ExpertShape, count: int) -> int:
    """`count` routed experts of one layer, its shared experts (each `shared_mlp` wide), and the router."""
    matrices = 3 if shape.gated else 2
    routed = count * matrices * shape.embed * experts.mlp
    shared = experts.shared * matrices * shape.embed * experts.shared_mlp
    gate = shape.embed if experts.shared_gate else 0
    router = experts.experts * (shape.embed + experts.router_bias)
    return routed + shared + gate + router


def _outside_feed_forward(shape: ModelShape) -> int:
    norms = (4 if shape.post_norms else 2) * norm_parameters(shape)
    layers = shape.layers * (attention_parameters(shape) + norms)
    return embedding_parameters(shape) + layers + norm_parameters(shape)
