"""Attention on TPU, causal or full: JAX's Pallas splash kernel, its forward and backward called apart.

The kernel module's own custom_vjp would hide the residuals, so its two halves are called directly. They are
internal to JAX's kernel module; jax 0.10 and 0.12 have the same ones.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LANES = 128  # width of a TPU vector register: blocks are multiples of it
LARGEST_BLOCK = 1024  # chosen: its scores and operands fit v5e's default 16 MiB of scoped VMEM,
WIDEST_HEAD = 128  # with heads that wide; wider ones have smaller blocks (heads of 256: 17.4 MiB with blocks of 1024)

# The fused backward kernel writes a partial dq for every block of keys, which are then added up. With more bytes of
# them on a device (chosen: a thirty-second of a v5e's memory) two kernels run instead that both make the scores again,
# and 7 matmuls instead of 5.
LARGEST_PARTIALS = 2**29


class Splash:
    """One grid over query heads and unmasked blocks; grouped heads share their key and value."""

    def forward(
        self, query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        kernel = _kernel(query.shape[1:], key.shape[1], causal, fused=True)
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (query * query.shape[-1] ** -0.5, key, value))

        def one(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return splash._splash_attention_forward(
                kernel.fwd_mask_info,
                q,
                k,
                v,
                None,
                None,
                mask_value=kernel.kwargs["mask_value"],
                is_mqa=False,
                block_sizes=kernel.kwargs["block_sizes"],
                residual_checkpoint_name=None,
                save_residuals=True,
                mask_function=kernel.kwargs["mask_function"],
                attn_logits_soft_cap=None,
            )

        out, (logsumexp,) = jax.vmap(one)(q, k, v)
        return jnp.swapaxes(out, 1, 2), logsumexp

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
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        scale = query.shape[-1] ** -0.5
        partials = query.nbytes * (key.shape[1] // block_size(key.shape[1], query.shape[-1]))
        kernel = _kernel(query.shape[1:], key.shape[1], causal, partials <= LARGEST_PARTIALS)
        arrays = (jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value, out, cotangent))

        def one(q: jax.Array, k: jax.Array, v: jax.Array, o: jax.Array, lse: jax.Array, do: jax.Array) -> Any:
            residuals = (q, k, v, None, None, o, lse, kernel.dq_mask_info, kernel.dkv_mask_info)
            grads = splash._splash_attention_bwd(
                save_residuals=False,
                mask_value=kernel.kwargs["mask_value"],
                is_mqa=False,
                block_sizes=kernel.kwargs["block_sizes"],
                residual_checkpoint_name=None,
                mask_function=kernel.kwargs["mask_function"],
                attn_logits_soft_cap=None,
                interpret=False,
                res=residuals,
                do=do,
            )
            return grads[3:6]

        q, k, v, o, do = arrays
        dq, dk, dv = (jnp.swapaxes(x, 1, 2) for x in jax.vmap(one)(q, k, v, o, logsumexp, do))
        return (dq * scale).astype(query.dtype), dk.astype(key.dtype), dv.astype(value.dtype)


def block_size(seq: int, head_dim: int) -> int:
    """The largest multiple of the lane width that divides the sequence: up to `LARGEST_BLOCK`, less for wide heads.

    Raises:
        ValueError: there is none.
    """
    largest = LARGEST_BLOCK * WIDEST_HEAD // max(head_dim, WIDEST_HEAD)
    for size in range(max(LANES, min(seq, largest)) // LANES * LANES, 0, -LANES):
        if seq % size == 0:
            return size
    raise ValueError(f"splash attention needs a sequence that is a multiple of {LANES}, got {seq}")


@functools.lru_cache(maxsize=16)
def _mask(queries: int, keys: int, heads: int, causal: bool) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    class Triangle(masks.CausalMask):
        """Answers for a block on one side of the diagonal with one element: there are n^2 of them to look at."""

        def __getitem__(self, at: tuple[slice, slice]) -> np.ndarray:
            rows, columns = at
            if rows.start >= columns.stop or rows.stop <= columns.start:
                return np.full((1, 1), rows.start >= columns.stop)
            return super().__getitem__(at)

    one = Triangle((queries, keys)) if causal else masks.FullMask((queries, keys))
    return masks.MultiHeadMask([one] * heads)


def _kernel(query: tuple[int, ...], keys: int, causal: bool, fused: bool) -> Any:
    """The kernel object with its schedule of unmasked blocks.

    Args:
        query: shape of one sequence's queries (S, N, H).
        fused: its backward pass is one kernel.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    queries, heads, head_dim = query
    rows, columns = block_size(queries, head_dim), block_size(keys, head_dim)
    sizes = splash.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=_compute_block(columns),
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=_compute_block(columns),
        block_q_dq=None if fused else rows,
        block_kv_dq=None if fused else columns,
        use_fused_bwd_kernel=fused,
    )
    mask = _mask(queries, keys, heads, causal)
    return splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)


def _compute_block(block: int) -> int:
    """Keys whose scores are in registers at a time: at most 512, and a divisor of the block that was loaded."""
    return next(size for size in range(min(block, 512), 0, -LANES) if block % size == 0)
