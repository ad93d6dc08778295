"""The decoder's layers in stages: a loop of ticks inside of one manual region over all axes of the mesh.

Symbols: p stages, M microbatches, R repeats (chunks of layers that one stage holds), l = L / (p R) layers of a chunk.
The layers' weights are gathered once a step, before the ticks; their gradients are added up over the ticks in float32
and reduced once, after. At tick t stage s works on item n = t - s, which is microbatch n mod M in its repeat n div M:
GPipe for R = 1 (Huang et al. 2019, arXiv:1811.06965, section 2.3), looped and breadth-first for R > 1 (Lamy-Poirier
2022, arXiv:2211.05953, section 3); M R + p - 1 ticks. Activations go on by one stage a tick, from the last to the
first, where they are the next repeat's input or a result. Bubbles compute on the first microbatch or on what bubbles
made of it: finite where the model is, and never part of a result, so that their cotangents are zeros.

Layers are stored stage by stage (`plan.schedule.layer_order`): a stage's chunks are contiguous in its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxplan.errors import InputError
from jaxplan.plan.remat import POLICIES
from jaxplan.plan.schedule import layer_order as layer_order
from jaxplan.workload.checkpoint import scan_layers
from jaxplan.workload.layout import Layout, Names
from jaxplan.workload.shape import ModelShape
from jaxplan.workload.weights import dtype_of

Weights = Mapping[str, jax.Array]
Rotary = tuple[jax.Array, jax.Array] | None
Stream = Any        # (B, S, D), or a tuple of it and (B, G): what goes through the blocks (`workload.block`)
Block = Callable[[Stream, Weights, Rotary], Stream]

STAGE = "stage"
STREAM = ("batch", "seq", "embed")
SLICED = ("dynamic_slice", "squeeze")       # how a layer's weights are taken from their stack


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A stack of layers over the mesh's axis `stage`.

    Attributes:
        layout: mesh and rules of the program around it, which XLA partitions.
        shape: the model. dims: the names of the dims of one layer's weights.
        remat: the policy under which a layer runs.
        microbatches, repeats: M and R.
        dtype: that weights are cast to before they are gathered.
    """

    layout: Layout
    shape: ModelShape
    dims: Mapping[str, Names]
    remat: str
    microbatches: int
    repeats: int = 1
    dtype: DTypeLike = jnp.bfloat16

    def __post_init__(self) -> None:
        if self.repeats > 1 and self.microbatches < self.stages:
            # a microbatch comes round to the first stage p ticks after it left it
            raise InputError(
                f"{self.microbatches} microbatches through {self.stages} stages {self.repeats} times",
                f"at least {self.stages} microbatches",
            )

    @property
    def stages(self) -> int:
        return self.layout.size([STAGE])

    @property
    def ticks(self) -> int:
        """Steps of the loop, each one chunk of layers on every stage."""
        return self.microbatches * self.repeats + self.stages - 1

    @property
    def inside(self) -> Layout:
        """The layout of the layers, which run in a manual region."""
        return replace(self.layout, manual=True)

    def over(self, block: Block) -> Block:
        """All layers in a row: stream, stacked weights, cosines and sines (S, H / 2) of positions to the stream.

        `block` is called on local arrays: its collectives are its own. Rows and sequence lie as the layout has them
        around the layers, over `stage` too.
        """
        layout = self.layout
        positions = PartitionSpec(layout.context_axes or None)
        stored = {name: layout.entering_spec(("layers", *dims)) for name, dims in self.dims.items()}

        def run(stream: Stream, weights: Weights, rotary: Rotary) -> Stream:
            around = jax.tree.map(lambda a: layout.spec(STREAM[: a.ndim]), stream)
            specs = (around, {name: stored[name] for name in weights}, positions)
            staged = layout.mapped(lambda *operands: self._local(block, *operands), specs, around)
            return staged(stream, dict(weights), rotary)

        return run

    def _local(self, block: Block, stream: Stream, weights: Weights, rotary: Rotary) -> Stream:
        """The same on one device's shards."""
        first = lax.axis_index(STAGE) == 0
        rows = _each(lambda a: lax.all_gather(a, STAGE, axis=0, tiled=True), stream)
        queue = _each(lambda a: _queued(a, self.microbatches), rows)
        whole = {n: self._gathered(n, w) for n, w in weights.items()}
        # the loop differentiates with respect to `sums` only, which lets it add gradients in place and in float32
        sums = jax.tree.map(lambda w: w.astype(jnp.float32), whole)
        layers = self._layers(block, jax.tree.map(lax.stop_gradient, whole), rotary)
        ring = [(s, (s + 1) % self.stages) for s in range(self.stages)]
        last, spare = self.microbatches * self.repeats, self.microbatches

        def tick(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
            queue, arrived, sums = carry
            started, queue = _take(queue, lax.select(t < last, lax.rem(t, spare), spare))
            x = _each(lambda a, b: lax.select(first, a, b), started, arrived)
            x, sums = layers(x, sums, t - lax.axis_index(STAGE))
            x = _each(lambda a: lax.ppermute(a, STAGE, ring), x)
            done = t - (self.stages - 1)
            slot = lax.select(done >= 0, lax.rem(done, spare), spare)
            return (_put(queue, x, slot), x, sums), None

        start = queue, _each(lambda a: lax.stop_gradient(a[0]), queue), sums
        (queue, _, _), _ = lax.scan(tick, start, jnp.arange(self.ticks))

        def scattered(queue: jax.Array) -> jax.Array:
            # the first stage has the results: a sum with zeros hands every stage its part of the rows
            rows = _unqueued(queue)
            mine = lax.select(first, rows, jnp.zeros_like(rows))
            return lax.psum_scatter(mine, STAGE, scatter_dimension=0, tiled=True)

        return _each(scattered, queue)

    def _gathered(self, name: str, weight: jax.Array) -> jax.Array:
        return self.inside.gathered(weight, ("layers", *self.dims[name]), dtype_of(name, self.dtype))

    def _layers(self, block: Block, whole: Weights, rotary: Rotary) -> Callable:
        """(stream, sums, item) to the stream and sums one chunk of layers later."""
        count = next(iter(whole.values())).shape[0] // self.repeats

        def step(carry: tuple, index: jax.Array) -> tuple[tuple, None]:
            stream, sums = carry
            layer, sums = _layer(whole, sums, index)
            return (block(stream, layer, rotary), sums), None

        if POLICIES[self.remat].saved is None:
            shapes = frozenset(w.shape[1:] for w in whole.values())
            step = jax.checkpoint(step, policy=_all_but(shapes), prevent_cse=False)
        loop = scan_layers(step, self.remat, self.shape, on_mesh=False)

        def run(stream: Stream, sums: Weights, item: jax.Array) -> tuple[Stream, Weights]:
            repeat = jnp.clip(lax.div(item, self.microbatches), 0, self.repeats - 1)
            carry, first = (stream, sums), repeat * count
            if not POLICIES[self.remat].offloaded:
                return loop(carry, first + jnp.arange(count))[0]
            for index in range(count):
                # compilers take a stack in the host's memory from one loop, not from a loop in a loop
                carry = loop(carry, (first + index)[None])[0]
            return carry

        return run


_each = jax.tree.map        # of the arrays of a stream


def _queued(x: jax.Array, microbatches: int) -> jax.Array:
    """Rows (b, ...) as microbatches (M + 1, b / M, ...): a microbatch is the minor factor of the rows.

    So it has the same rows of the global batch whatever the mesh. The last slot is spare, with the first microbatch
    for bubbles to read, and to write.
    """
    parts = jnp.swapaxes(x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:]), 0, 1)
    return jnp.concatenate([parts, lax.stop_gradient(parts[:1])])


def _unqueued(queue: jax.Array) -> jax.Array:
    """The rows of `_queued` in their order."""
    parts = jnp.swapaxes(queue[:-1], 0, 1)
    return parts.reshape(parts.shape[0] * parts.shape[1], *parts.shape[2:])


def _put(queue: Stream, value: Stream, slot: jax.Array) -> Stream:
    return _each(lambda q, v: lax.dynamic_update_index_in_dim(q, v, slot, 0), queue, value)


def _taken(queue: Stream, slot: jax.Array) -> tuple[Stream, Stream]:
    return _each(lambda q: lax.dynamic_index_in_dim(q, slot, 0, keepdims=False), queue), queue


def _take_backward(slot: jax.Array, cotangents: tuple) -> tuple:
    taken, queue = cotangents
    return _put(queue, taken, slot), _no_cotangent()


# One slot of a queue, and the queue, whose slot nothing reads before it is written again: its cotangent is the taken
# value's alone, written in place.
_take = jax.custom_vjp(_taken)
_take.defvjp(lambda queue, slot: (_taken(queue, slot), slot), _take_backward)


def _layer_taken(whole: Weights, sums: Weights, index: jax.Array) -> tuple[Weights, Weights]:
    def take(stack: jax.Array) -> jax.Array:
        at = (index, *[0] * (stack.ndim - 1))
        return lax.squeeze(lax.dynamic_slice(stack, at, (1, *stack.shape[1:])), [0])

    return {name: take(stack) for name, stack in whole.items()}, sums


def _layer_backward(index: jax.Array, cotangents: tuple[Weights, Weights]) -> tuple:
    layer, sums = cotangents

    def add(total: jax.Array, part: jax.Array) -> jax.Array:
        old = lax.dynamic_index_in_dim(total, index, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(total, old + part.astype(total.dtype), index, 0)

    return None, {name: add(sums[name], part) for name, part in layer.items()}, _no_cotangent()


# One layer of stacked weights, whose cotangent is added to that of `sums`, in place: the cotangent of a constant of a
# loop would be a stack of zeros with one layer in it, added to another stack, for every layer and tick. `sums` is
# never read: it has no values but the cotangent's shape and dtype.
_layer = jax.custom_vjp(_layer_taken)
_layer.defvjp(lambda whole, sums, index: (_layer_taken(whole, sums, index), index), _layer_backward)


def _all_but(shapes: frozenset[tuple[int, ...]]) -> Callable[..., bool]:
    """Keeps every value but one layer's weights of these shapes: to take them from their stack again costs nothing."""

    def keep(primitive: Any, *values: Any, **_: Any) -> bool:
        return not (primitive.name in SLICED and values[0].shape[1:] in shapes)

    return keep


def _no_cotangent() -> Any:
    return np.zeros((), jax.dtypes.float0)
