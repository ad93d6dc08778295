"""Causal attention as one operation: two named calls, whose residuals carry the remat tag.

Shapes: query (B, S, N, H), key and value (B, S, K, H) with N a multiple of K; result (B, S, N, H); logsumexp
of the scaled scores (B, N, S) in float32. Scores are scaled by H^-1/2 (Vaswani et al. 2017, arXiv:1706.03762,
section 3.2.1). Only query, key, value, the result and the logsumexp are kept for the backward pass, which
recomputes the scores (Dao et al. 2022, arXiv:2205.14135, section 3.1). The result and the logsumexp bear the
tag `attention`, so that a remat policy that saves the tag never runs the forward kernel twice.

Over a context axis each device has a part of the sequence: `ring` (`kernels.ring`) and `ulysses` (`kernels.ulysses`)
move what a kernel of local arrays needs. Over the axis `group` devices share a key-value head, each with its own query
heads (`Shared`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jaxplan.errors import InputError
from jaxplan.workload.kernels.calls import kept, named
from jaxplan.workload.kernels.ring import Ring
from jaxplan.workload.kernels.ulysses import Ulysses
from jaxplan.workload.layout import Layout

ATTENTION_KERNELS = ("blockwise", "splash", "cudnn")
CONTEXT_KERNELS = {"ring": Ring, "ulysses": Ulysses}
QUERY = ("batch", "seq", "heads", "head_dim")
KEY = ("batch", "seq", "kv_heads", "head_dim")
LOGSUMEXP = ("batch", "heads", "seq")

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Causal(Protocol):
    """The two halves of causal attention, on local arrays."""

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


class Kernel(Protocol):
    """The two halves of an attention kernel; where it is not causal, keys may be more or fewer than queries.

    The backward pass of a block of keys is exact with the result and the logsumexp of all keys, which give the
    probabilities and the sum over each row (Dao et al. 2022, arXiv:2205.14135, appendix B.2, equations 3 and 4).
    """

    def forward(
        self, query: jax.Array, key: jax.Array, value: jax.Array, causal: bool = True
    ) -> tuple[jax.Array, jax.Array]:
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
        causal: bool = True,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cotangents of query, key and value."""
        ...


def kernel(name: str, layout: Layout | None = None) -> Kernel:
    """The kernel of that name, for the layout's devices; each is imported only when it is asked for.

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

        return Cudnn("" if layout is None else getattr(layout.mesh.devices.flat[0], "compute_capability", ""))
    raise InputError(f"attention kernel {name!r}", f"one of {', '.join(ATTENTION_KERNELS)}")


def attention(name: str, layout: Layout | None = None, context: str = "ring") -> Attention:
    """Differentiable causal attention with the kernel of that name, on the layout's mesh if there is one.

    Args:
        context: how all keys are seen where the sequence is sharded: `ring`, on a sequence in zig-zag order
            (`kernels.zigzag`), or `ulysses`, on one in natural order.

    Raises:
        InputError: no such kernel, or no such context attention.
    """
    if context not in CONTEXT_KERNELS:
        raise InputError(f"context attention {context!r}", f"one of {', '.join(CONTEXT_KERNELS)}")
    if layout is None:
        chosen = kernel(name)
        forward = named("attention_forward", chosen.forward)
        backward = named("attention_backward", chosen.backward)
    else:
        chosen, lse = _on_mesh(kernel(name, layout), layout, context)
        q, k = layout.spec(QUERY), layout.spec(KEY)
        forward = named("attention_forward", chosen.forward, layout, (q, k, k), (q, lse))
        backward = named("attention_backward", chosen.backward, layout, (q, k, k, q, lse, q), (q, k, k))

    @jax.custom_vjp
    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return forward(query, key, value)[0]

    def attend_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple]:
        out, logsumexp = forward(query, key, value)
        out = kept(out, "attention")
        logsumexp = checkpoint_name(logsumexp, "attention")
        return out, (query, key, value, out, logsumexp)

    def attend_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return backward(*residuals, cotangent)

    attend.defvjp(attend_forward, attend_backward)
    return attend


def _on_mesh(local: Kernel, layout: Layout, context: str) -> tuple[Causal, PartitionSpec]:
    """Attention on the layout's shards with a kernel of local arrays, and how its logsumexp lies."""
    axes, lse = layout.axes_of("seq", QUERY), layout.spec(LOGSUMEXP)
    over: Causal = local
    if layout.size(axes) > 1:
        over = CONTEXT_KERNELS[context](local, axes, layout.size(axes))
        if context == "ulysses":    # stays where the kernel made it: whole rows of a share of the heads
            lse = PartitionSpec(lse[0], (*layout.axes_of("heads", QUERY), *axes), None)
    kv_axes = layout.axes_of("kv_heads", KEY)
    shared = tuple(axis for axis in layout.axes_of("heads", QUERY) if axis not in kv_axes)
    if layout.size(shared) > 1:
        over = Shared(over, shared, summed=not layout.manual)
    return over, lse


@dataclass(frozen=True)
class Shared:
    """Attention where several devices share a key-value head, each with query heads of its own.

    They have equal keys and values, made from a whole input. A device's cotangents of them are its own share: in an
    automatic layout, where equal values have one cotangent, they are added up here; in a manual one where the input is
    scattered again and, for weights, where the manual region ends.

    Attributes:
        axes: of the devices that share.
        summed: the cotangents of keys and values are added up here.
    """

    attention: Causal
    axes: tuple[str, ...]
    summed: bool

    def forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Result and logsumexp.

        Raises:
            ValueError: a device has more than one key-value head: its query heads are not those of all of them.
        """
        if key.shape[2] != 1:
            raise ValueError(
                f"query heads over {' and '.join(self.axes)} need one key-value head a device, got {key.shape[2]}"
            )
        return self.attention.forward(query, key, value)

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
        grads = self.attention.backward(query, key, value, out, logsumexp, cotangent)
        return (grads[0], *lax.psum(grads[1:], self.axes)) if self.summed else grads
