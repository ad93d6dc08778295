"""Attention on any backend without an array of queries x keys: a loop over pairs of blocks, causal or all of them.

Online softmax: Milakov and Gimelshein 2018 (arXiv:1805.02867, algorithm 3); blocks: Dao et al. 2022
(arXiv:2205.14135, algorithms 1 and 4). Grouped-query heads share their key and value without a copy. Causal work: n
(n + 1) / 2 of n^2 block pairs, that is (n + 1) / n of the exact half.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

MASKED = -0.7 * float(
    np.finfo(np.float32).max
)  # not -inf: the difference of two masked scores must be finite


class Blockwise:
    """Loops of XLA operations; all arithmetic of the softmax in float32.

    Args:
        block: the largest block of queries and of keys; the largest divisor of their number up to it is used.
    """

    def __init__(self, block: int = 512) -> None:
        self.block = block

    def forward(
        self, query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        groups = _grouped(query, key)
        block, keys = (_divisor(x.shape[1], self.block) for x in (query, key))
        batch, seq, kv_heads, group, width = groups.shape
        rows = (batch, kv_heads, group, block)

        def step(carry: tuple, pair: jax.Array) -> tuple[tuple, None]:
            out, logsumexp, total, maximum, normalizer = carry
            i, j = pair[0], pair[1]
            first = j == 0
            total = jnp.where(first, 0.0, total)
            maximum = jnp.where(first, MASKED, maximum)
            normalizer = jnp.where(first, 0.0, normalizer)
            scores = _scores(_take(groups, i, block), _take(key, j, keys), (i, j) if causal else None)
            new = jnp.maximum(maximum, scores.max(-1))
            weights, decay = jnp.exp(scores - new[..., None]), jnp.exp(maximum - new)
            normalizer = normalizer * decay + weights.sum(-1)
            update = _dot("bkgqs,bskh->bkgqh", weights.astype(value.dtype), _take(value, j, keys))
            total = total * decay[..., None] + update
            # written at every key block: the last one leaves the finished row
            rows_out = jnp.moveaxis(total / normalizer[..., None], 3, 1).astype(out.dtype)
            out = jax.lax.dynamic_update_slice_in_dim(out, rows_out, i * block, 1)
            logsumexp = jax.lax.dynamic_update_slice_in_dim(
                logsumexp, new + jnp.log(normalizer), i * block, 3
            )
            return (out, logsumexp, total, new, normalizer), None

        start = (
            jnp.zeros_like(groups),
            jnp.zeros((batch, kv_heads, group, seq), jnp.float32),
            jnp.zeros((*rows, width), jnp.float32),
            jnp.full(rows, MASKED, jnp.float32),
            jnp.zeros(rows, jnp.float32),
        )
        pairs = _pairs(seq // block, key.shape[1] // keys, causal)
        (out, logsumexp, *_), _ = jax.lax.scan(step, start, pairs)
        return out.reshape(query.shape), logsumexp.reshape(batch, kv_heads * group, seq)

    def backward(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        out: jax.Array,
        logsumexp: jax.Array,
        cotangent: jax.Array,
        causal: bool = True,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        groups = _grouped(query, key)
        block, keys = (_divisor(x.shape[1], self.block) for x in (query, key))
        batch, seq, kv_heads, group, width = groups.shape
        grads = cotangent.reshape(groups.shape)
        logsumexp = logsumexp.reshape(batch, kv_heads, group, seq)
        # rowsum(dO * O) (Dao et al. 2022, appendix B.2, equation 4)
        delta = jnp.sum(out.astype(jnp.float32) * cotangent.astype(jnp.float32), -1)
        delta = jnp.moveaxis(delta.reshape(batch, seq, kv_heads, group), 1, 3)

        def step(carry: tuple, pair: jax.Array) -> tuple[tuple, None]:
            d_query, d_key, d_value, total = carry
            i, j = pair[0], pair[1]
            total = jnp.where(j == 0, 0.0, total)
            q, do = _take(groups, i, block), _take(grads, i, block)
            k, v = _take(key, j, keys), _take(value, j, keys)
            scores = _scores(q, k, (i, j) if causal else None)
            weights = jnp.exp(scores - _take(logsumexp, i, block, 3)[..., None])
            d_weights = _dot("bqkgh,bskh->bkgqs", do, v)
            d_scores = weights * (d_weights - _take(delta, i, block, 3)[..., None]) * width**-0.5
            d_scores = d_scores.astype(query.dtype)
            d_value = _add(d_value, _dot("bkgqs,bqkgh->bskh", weights.astype(do.dtype), do), j * keys)
            d_key = _add(d_key, _dot("bkgqs,bqkgh->bskh", d_scores, q), j * keys)
            total = total + _dot("bkgqs,bskh->bqkgh", d_scores, k)
            d_query = jax.lax.dynamic_update_slice_in_dim(d_query, total.astype(d_query.dtype), i * block, 1)
            return (d_query, d_key, d_value, total), None

        start = (
            jnp.zeros_like(groups),
            jnp.zeros(key.shape, jnp.float32),
            jnp.zeros(value.shape, jnp.float32),
            jnp.zeros((batch, block, kv_heads, group, width), jnp.float32),
        )
        pairs = _pairs(seq // block, key.shape[1] // keys, causal)
        (d_query, d_key, d_value, _), _ = jax.lax.scan(step, start, pairs)
        return d_query.reshape(query.shape), d_key.astype(key.dtype), d_value.astype(value.dtype)


def _pairs(rows: int, columns: int, causal: bool) -> jax.Array:
    """(query block, key block), row by row: of the lower triangle, or all."""
    pairs = [(i, j) for i in range(rows) for j in range(i + 1 if causal else columns)]
    return jnp.array(pairs, jnp.int32)


def _divisor(seq: int, limit: int) -> int:
    return next(size for size in range(min(seq, limit), 0, -1) if seq % size == 0)


def _grouped(query: jax.Array, key: jax.Array) -> jax.Array:
    """Query as (batch, seq, kv heads, group, head width)."""
    batch, seq, heads, width = query.shape
    return query.reshape(batch, seq, key.shape[2], heads // key.shape[2], width)


def _take(array: jax.Array, index: jax.Array, block: int, axis: int = 1) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, index * block, block, axis)


def _add(total: jax.Array, part: jax.Array, start: jax.Array) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(total, start, part.shape[1], 1)
    return jax.lax.dynamic_update_slice_in_dim(total, old + part, start, 1)


def _dot(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _scores(query: jax.Array, key: jax.Array, at: tuple[jax.Array, jax.Array] | None) -> jax.Array:
    """Scaled scores (batch, kv heads, group, queries, keys) of two blocks, masked where they stand `at` (i, j)."""
    scores = _dot("bqkgh,bskh->bkgqs", query, key) * query.shape[-1] ** -0.5
    if at is None:
        return scores
    rows = at[0] * query.shape[1] + jnp.arange(query.shape[1])[:, None]
    columns = at[1] * key.shape[1] + jnp.arange(key.shape[1])[None, :]
    return jnp.where(columns <= rows, scores, MASKED)
