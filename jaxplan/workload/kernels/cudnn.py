"""Attention on NVIDIA GPUs, causal or full: cuDNN's fused kernels, forward and backward called apart.

JAX's own rule for the backward kernel is called directly, so that the residuals are the caller's to keep; it
is internal to JAX and gained arguments between 0.10 and 0.12. cuDNN wants 16-bit operands and a head width
that is a multiple of 8.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

SEED, DROPOUT = 42, 0.0  # the kernel's own defaults; without dropout the seed is not read


class Cudnn:
    """cuDNN flash attention with grouped heads; the forward pass keeps the logsumexp.

    Args:
        capability: the compute capability of the GPU that the program is for, such as 9.0; empty: the attached one.
    """

    def __init__(self, capability: str = "") -> None:
        self.capability = capability

    def forward(
        self, query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        fused = _module()
        with _on(self.capability, fused):
            out, logsumexp = fused.dot_product_attention(
                query,
                key,
                value,
                scale=query.shape[-1] ** -0.5,
                mask_type=fused.MaskType.CAUSAL if causal else fused.MaskType.NO_MASK,
                qkv_layout="BTNH",
                return_residual=True,
            )
        return out, logsumexp

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
        fused, empty = _module(), jnp.zeros(0, query.dtype)
        rule = fused._dot_product_attention_bwd_rule
        options: dict[str, Any] = {
            "scale": query.shape[-1] ** -0.5,
            "seed": SEED,
            "dropout_rate": DROPOUT,
            "variadic_args": (False, False),
            "mask_type": fused.MaskType.CAUSAL if causal else fused.MaskType.NO_MASK,
            "layout": fused.AttentionLayout.BTNH.value,
            "sliding_window_length": None,
            "return_residual": False,
        }
        # operands that attention without bias and padding does not use: bias, lengths, offsets, page tables
        residuals: tuple[Any, ...] = (query, key, value, *[empty] * 7)
        if "score_mod" in inspect.signature(rule).parameters:  # jax 0.12
            options |= {"score_mod": None, "cudnn_version": fused.check_cudnn_version()}
            residuals += ((),)
        else:
            options["is_training"] = True
        with _on(self.capability, fused):
            grads = rule(**options, res=(*residuals, logsumexp, out), grad_output=cotangent)
        return grads[0], grads[1], grads[2]


@contextlib.contextmanager
def _on(capability: str, fused: Any) -> Iterator[None]:
    """JAX asks the attached GPU how wide heads may be (128, from Hopper on 256): here, the one a program is for."""
    asked = fused.check_compute_capability
    if capability:
        fused.check_compute_capability = lambda least: _version(capability) >= _version(least)
    try:
        yield
    finally:
        fused.check_compute_capability = asked


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _module() -> Any:
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo
