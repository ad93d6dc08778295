"""Causal attention as one operation: two named calls, whose residuals carry the remat tag.

Shapes: query (B, S, N, H), key and value (B, S, K, H) with N a multiple of K; result (B, S, N, H); logsumexp
of the scaled scores (B, N, S) in float32. Scores are scaled by H^-1/2 (Vaswani et al. 2017, arXiv:1706.03762,
section 3.2.1). Only query, key, value, the result and the logsumexp are kept for the backward pass, which
recomputes the scores (Dao et al. 2022, arXiv:2205.14135, section 3.1). The result and the logsumexp bear the
tag `attention`, so that a remat policy that saves the tag never runs the forward kernel twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxplan.errors import InputError
from jaxplan.workload.kernels.calls import named
from jaxplan.workload.layout import Layout

ATTENTION_KERNELS = ("blockwise", "splash", "cudnn")
QUERY = ("batch", "seq", "heads", "head_dim")
KEY = ("batch", "seq", "kv_heads", "head_dim")
LOGSUMEXP = ("batch", "heads", "seq")

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Kernel(Protocol):
    """The two halves of an attention kernel, on local arrays."""

    def forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Result and logsumexp."""
        ...

    def backward(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        out: jax.Array,
        logsumexp: jax.Array,
        cotangent: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cotangents of query, key and value."""
        ...


def kernel(name: str) -> Kernel:
    """The kernel of that name; each is imported only when it is asked for.

    Raises:
        InputError: no such kernel.
    """
    if name == "blockwise":
        from jaxplan.workload.kernels.blockwise import Blockwise

        return Blockwise()
    if name == "splash":
        from jaxplan.workload.kernels.splash import Splash

        return Splash()
    if name == "cudnn":
        from jaxplan.workload.kernels.cudnn import Cudnn

        return Cudnn()
    raise InputError(f"attention kernel {name!r}", f"one of {', '.join(ATTENTION_KERNELS)}")


def attention(name: str, layout: Layout | None = None) -> Attention:
    """Differentiable causal attention with the kernel of that name, on the layout's mesh if there is one."""
    chosen = kernel(name)
    if layout is None:
        forward = named("attention_forward", chosen.forward)
        backward = named("attention_backward", chosen.backward)
    else:
        q, k, lse = layout.spec(QUERY), layout.spec(KEY), layout.spec(LOGSUMEXP)
        forward = named("attention_forward", chosen.forward, layout, (q, k, k), (q, lse))
        backward = named("attention_backward", chosen.backward, layout, (q, k, k, q, lse, q), (q, k, k))

    @jax.custom_vjp
    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return forward(query, key, value)[0]

    def attend_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple]:
        out, logsumexp = forward(query, key, value)
        out = checkpoint_name(out, "attention")
        logsumexp = checkpoint_name(logsumexp, "attention")
        return out, (query, key, value, out, logsumexp)

    def attend_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return backward(*residuals, cotangent)

    attend.defvjp(attend_forward, attend_backward)
    return attend
