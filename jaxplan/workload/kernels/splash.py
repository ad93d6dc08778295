"""Causal attention on TPU: JAX's Pallas splash kernel, its forward and fused backward called apart.

The kernel module's own custom_vjp would hide the residuals, so its two halves are called directly. They are
internal to JAX's kernel module; jax 0.10 and 0.12 have the same ones.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

LANES = 128  # width of a TPU vector register: blocks are multiples of it
LARGEST_BLOCK = (
    1024  # chosen: its scores and operands fit v5e's default 16 MiB of scoped VMEM
)


class Splash:
    """One grid over query heads and blocks of the triangle; grouped heads share their key and value."""

    def forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        kernel = _kernel(query.shape[1], query.shape[2])
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
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

        kernel, scale = _kernel(query.shape[1], query.shape[2]), query.shape[-1] ** -0.5
        arrays = (jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value, out, cotangent))

        def one(q: jax.Array, k: jax.Array, v: jax.Array, o: jax.Array, lse: jax.Array, do: jax.Array) -> Any:
            residuals = (q, k, v, None, None, o, lse, None, kernel.dkv_mask_info)
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


def block_size(seq: int) -> int:
    """The largest multiple of the lane width, up to `LARGEST_BLOCK`, that divides the sequence.

    Raises:
        ValueError: there is none.
    """
    for size in range(min(seq, LARGEST_BLOCK) // LANES * LANES, 0, -LANES):
        if seq % size == 0:
            return size
    raise ValueError(f"splash attention needs a sequence that is a multiple of {LANES}, got {seq}")


@functools.lru_cache(maxsize=16)
def _mask(seq: int, heads: int) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    return masks.MultiHeadMask([masks.CausalMask((seq, seq)) for _ in range(heads)])


def _kernel(seq: int, heads: int) -> Any:
    """The kernel object with its block schedule of the causal triangle."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    block = block_size(seq)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=min(block, 512),
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=min(block, 512),
        use_fused_bwd_kernel=True,
    )
    return splash.make_splash_mha(_mask(seq, heads), block_sizes=sizes, head_shards=1, q_seq_shards=1)
