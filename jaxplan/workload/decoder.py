"""The reference decoder: a Flax nnx module whose layers are stacked and scanned, and its functional view.

Parameters are float32 by default and bear the names of their dims as Flax metadata (`out_sharding`); dims are
named as in `workload.shape`. `loss_function` gives the same model as a pure function of a dict of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxplan.errors import InputError
from jaxplan.plan.remat import POLICIES
from jaxplan.workload.block import STREAM, Block, Stream
from jaxplan.workload.checkpoint import scan_layers
from jaxplan.workload.kernels.attention import attention
from jaxplan.workload.kernels.dispatch import Exchange
from jaxplan.workload.kernels.dropless import Dropless
from jaxplan.workload.kernels.embedding import lookup
from jaxplan.workload.kernels.loss import cross_entropy
from jaxplan.workload.kernels.zigzag import Order
from jaxplan.workload.layout import Layout, Names
from jaxplan.workload.norms import norm
from jaxplan.workload.pipeline import STAGE, Pipeline
from jaxplan.workload.rotary import rotary_angles, rotary_width
from jaxplan.workload.shape import Dispatch, ModelShape
from jaxplan.workload.weights import LAYERS, block_dims, dim_sizes, dtype_of, initial, parameter_dims, stacks

Tree = dict[str, Any]
BATCH_DIMS: Tree = {"tokens": ("batch", "seq"), "targets": ("batch", "seq")}


@dataclass(frozen=True, eq=False)
class Kernels:
    """How the decoder's three opaque operations are executed.

    Attributes:
        attention: `blockwise`, `splash` or `cudnn`.
        loss_chunks: sequential parts of the local vocabulary in which logits are made.
        layout: mesh and rules; None for one device.
        context_attention: `ring` or `ulysses`, where the sequence is sharded over a context axis (`Plan`).
        microbatches, repeats: of the pipeline, where the mesh has an axis `stage` (`workload.pipeline`).
        dispatch, capacity_factor: how a mixture of experts takes its tokens (`Workload`).
        expert_groups: groups of tokens in a row, each with its own capacity; 0: one a shard of the sequence.
    """

    attention: str = "blockwise"
    loss_chunks: int = 1
    layout: Layout | None = None
    context_attention: str = "ring"
    microbatches: int = 1
    repeats: int = 1
    dispatch: Dispatch = "capacity"
    capacity_factor: float = 1.25
    expert_groups: int = 0

    @property
    def order(self) -> Order:
        """The order in which the program has its sequence."""
        return Order.of(self.layout, self.context_attention)


class Stack(nnx.Module):
    """The parameters of all blocks, stacked along a leading `layers` dim."""


class Decoder(nnx.Module):
    """A decoder-only transformer (Vaswani et al. 2017; Radford et al. 2019; Touvron et al. 2023).

    Args:
        shape: the model's sizes and variants.
        rngs: randomness of the initial parameters.
        remat: a policy's name (`plan.remat`).
        kernels: how attention, lookup and loss are executed.
        compute_dtype: dtype of activations, and of weights where they are used.
        parameter_dtype: dtype of the stored parameters.

    Raises:
        InputError: the shape is not runnable, or the policy is unknown.
    """

    # set by name below, as the shape has them
    embedding: nnx.Param
    unembed: nnx.Param
    positions: nnx.Param
    final_norm: nnx.Param
    final_norm_bias: nnx.Param

    def __init__(
        self,
        shape: ModelShape,
        *,
        rngs: nnx.Rngs,
        remat: str = "full",
        kernels: Kernels | None = None,
        compute_dtype: DTypeLike = jnp.bfloat16,
        parameter_dtype: DTypeLike = jnp.float32,
    ) -> None:
        if remat not in POLICIES:
            raise InputError(f"remat policy {remat!r}", f"one of {', '.join(POLICIES)}")
        self.shape, self.remat, self.kernels = shape, remat, kernels or Kernels()
        self.compute_dtype = compute_dtype
        tree = parameter_dims(shape)
        owners: dict[str, nnx.Module] = {"": self, **{stack: Stack() for stack in reversed(stacks(shape))}}
        for stack, owner in owners.items():
            for name, dims in sorted((tree[stack] if stack else tree).items()):
                if isinstance(dims, tuple):
                    sizes = dim_sizes(shape, stack, name)
                    value = initial(rngs.params(), name, dims, sizes, parameter_dtype)
                    # not sharded eagerly: a plan shards the state, and an abstract decoder needs no mesh
                    setattr(owner, name, nnx.Param(value, out_sharding=dims, eager_sharding=False))
            if stack:
                setattr(self, stack, owner)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens (B, S) to the final, normalized hidden states (B, S, D), in the program's order of the sequence."""
        return self._run(tokens)[0]

    def _run(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The same, and the balance loss of each group of tokens (B, G) in a mixture of experts."""
        layout, order = self.kernels.layout, self.kernels.order
        constrain = _unconstrained if layout is None else layout.constrain
        x = lookup(self.compute_dtype, layout)(self.embedding[...], order.apply(tokens, ("batch", "seq")))
        if self.shape.positions == "learned":
            positions = self.positions[...].astype(self.compute_dtype)
            x = constrain(x + order.apply(positions[: tokens.shape[1]], ("seq", "embed")), STREAM)
        stream: Stream = x
        if self.shape.experts is not None:
            groups = self._exchange(layout).groups_seen
            stream = x, constrain(jnp.zeros((x.shape[0], groups), jnp.float32), STREAM[:2])
        for stack in stacks(self.shape):
            stream = self._blocks(stack, constrain)(stream)
        x, balance = stream if isinstance(stream, tuple) else (stream, None)
        bias = self.final_norm_bias[...] if self.shape.norm == "layernorm" else None
        return norm(x, self.final_norm[...], bias, self.shape), balance

    def _exchange(self, layout: Layout | None) -> Exchange | Dropless:
        """How tokens get to the experts of one stack of blocks."""
        if self.shape.experts is None:
            raise ValueError(f"{self.shape.name} has no experts")
        about = (self.shape.experts, self.kernels.expert_groups, layout)
        if self.kernels.dispatch == "dropless":
            return Dropless(*about, activation=self.shape.activation)
        return Exchange(*about, capacity_factor=self.kernels.capacity_factor)

    def _blocks(
        self, stack: str, constrain: Callable[[jax.Array, Names], jax.Array]
    ) -> Callable[[Stream], Stream]:
        """All blocks of a stack in a row, each under the remat policy; `layers` in stages where the mesh has any."""
        staged = self._pipeline() if stack == LAYERS else None
        layout = self.kernels.layout if staged is None else staged.inside
        attend = attention(self.kernels.attention, layout, self.kernels.context_attention)
        enter, leave = (_unconstrained, _unconstrained) if layout is None else (layout.enter, layout.leave)
        constrain = constrain if staged is None else _unconstrained
        exchange = self._exchange(layout) if self.shape.experts is not None else None
        weight = partial(self._weight, stack) if staged is None else _whole
        block = Block(self.shape, attend, constrain, weight, enter, leave, exchange)
        weights = nnx.to_pure_dict(nnx.state(getattr(self, stack), nnx.Param))

        def run(x: Stream) -> Stream:
            rotary = None
            if self.shape.positions == "rope":
                positions = self.kernels.order.positions(jax.tree.leaves(x)[0].shape[1])
                rotary = rotary_angles(positions, rotary_width(self.shape), self.shape.rope_theta)

            if staged is not None:
                return staged.over(block)(x, weights, rotary)

            def step(x: Stream, layer: Tree) -> tuple[Stream, None]:
                return block(x, layer, rotary), None

            return scan_layers(step, self.remat, self.shape, layout is not None)(x, weights)[0]

        return run

    def _pipeline(self) -> Pipeline | None:
        kernels = self.kernels
        if kernels.layout is None or STAGE not in kernels.layout.axes:
            return None
        dims, dtype = block_dims(self.shape), self.compute_dtype
        return Pipeline(kernels.layout, self.shape, dims, self.remat, kernels.microbatches, kernels.repeats, dtype)

    def _weight(self, stack: str, name: str, value: jax.Array) -> jax.Array:
        """A block's weight as it is computed with."""
        layout, dtype = self.kernels.layout, dtype_of(name, self.compute_dtype)
        if layout is None:
            return value.astype(dtype)
        return layout.gathered(value, block_dims(self.shape, stack)[name], dtype, stack)

    def loss(self, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """Mean cross-entropy over all tokens, a float32 scalar; `targets` (B, S): the tokens to predict.

        In a mixture of experts the balance loss is added, times its coefficient: over groups of tokens the mean, over
        layers the sum.
        """
        tied = self.shape.tied_embeddings
        weight = (self.embedding if tied else self.unembed)[...]
        x, balance = self._run(tokens)
        total = cross_entropy(tied, self.kernels.loss_chunks, self.kernels.layout)(
            x, weight, self.kernels.order.apply(targets, ("batch", "seq"))
        )
        loss = total / float(tokens.size)
        if balance is None or self.shape.experts is None:
            return loss
        return loss + self.shape.experts.aux_coefficient * balance.mean()


def _unconstrained(value: jax.Array, names: Names) -> jax.Array:
    return value


def _whole(name: str, value: jax.Array) -> jax.Array:
    """A weight that stages have cast and gathered before their layers run."""
    return value


class LossFunction(NamedTuple):
    """A model as a pure function.

    Attributes:
        loss: (params, batch) to the mean loss.
        params: abstract parameters, a nested dict of ShapeDtypeStructs.
        batch: abstract batch: `tokens` and `targets`, (B, S) int32.
        parameter_dims: dim names of every parameter.
        batch_dims: dim names of the batch.
        init: a key to initial parameters.
    """

    loss: Callable[[Tree, Tree], jax.Array]
    params: Tree
    batch: Tree
    parameter_dims: Tree
    batch_dims: Tree
    init: Callable[[jax.Array], Tree]


def loss_function(
    shape: ModelShape,
    batch: int,
    seq: int,
    *,
    remat: str = "none",
    kernels: Kernels | None = None,
    compute_dtype: DTypeLike = jnp.bfloat16,
    parameter_dtype: DTypeLike = jnp.float32,
) -> LossFunction:
    """The decoder as a pure function of plain dicts, on which optax and program analysis work.

    Raises:
        InputError: the shape is not runnable, or `seq` exceeds its learned positions.
    """
    if shape.positions == "learned" and seq > shape.max_positions:
        raise InputError(
            f"seq {seq} for {shape.name}", f"at most {shape.max_positions}, its learned positions"
        )

    def make(key: jax.Array) -> Decoder:
        return Decoder(
            shape,
            rngs=nnx.Rngs(key),
            remat=remat,
            kernels=kernels,
            compute_dtype=compute_dtype,
            parameter_dtype=parameter_dtype,
        )

    def init(key: jax.Array) -> Tree:
        return nnx.to_pure_dict(nnx.state(make(key), nnx.Param))

    graph, state = nnx.split(nnx.eval_shape(make, jax.random.key(0)))

    def loss(params: Tree, batch: Tree) -> jax.Array:
        filled = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(filled, params)
        return nnx.merge(graph, filled).loss(batch["tokens"], batch["targets"])

    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    abstract = jax.eval_shape(init, jax.random.key(0))
    return LossFunction(
        loss, abstract, {"tokens": ids, "targets": ids}, parameter_dims(shape), dict(BATCH_DIMS), init
    )
