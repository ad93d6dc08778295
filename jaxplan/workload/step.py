"""A whole training step of a plan: gradients over microbatches, optimizer update, every sharding pinned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxplan.plan.plan import Plan
from jaxplan.workload.decoder import Kernels, LossFunction, loss_function
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims, optimizer
from jaxplan.workload.storage import Storage, hold, inner
from jaxplan.workload.user import AS_WRITTEN

Tree = Any


class TrainState(NamedTuple):
    """What a step carries on: parameters and the optimizer's state, which counts the steps."""

    params: Tree
    optimizer: Tree


@dataclass(frozen=True, eq=False)
class TrainStep:
    """A plan's training step.

    Attributes:
        function: (state, batch) to (state, {"loss"}); to be jitted with `jit`.
        init: a key to a state, made where it is stored.
        abstract_state: ShapeDtypeStructs, with NamedShardings on a mesh.
        abstract_batch: the same for the global batch (the decoder's: `tokens` and `targets`, (B, S) int32).
        model: the functional view of one microbatch.
    """

    function: Callable[[TrainState, Tree], tuple[TrainState, dict[str, jax.Array]]]
    init: Callable[[jax.Array], TrainState]
    abstract_state: TrainState
    abstract_batch: Tree
    model: LossFunction
    layout: Layout | None

    @cached_property
    def jit(self) -> Any:
        """The jitted step: shardings pinned on both sides, the state donated."""
        if self.layout is None:
            return jax.jit(self.function, donate_argnums=0)
        state, batch = (
            jax.tree.map(lambda a: a.sharding, t) for t in (self.abstract_state, self.abstract_batch)
        )
        replicated = self.layout.sharding(PartitionSpec())
        return jax.jit(
            self.function,
            in_shardings=(state, batch),
            out_shardings=(state, {"loss": replicated}),
            donate_argnums=0,
        )

    def lower(self) -> Any:
        """The step lowered for the mesh's devices; they need not exist."""
        return self.jit.lower(self.abstract_state, self.abstract_batch)


def build(plan: Plan, mesh: Mesh | None = None, *, impose: bool = True) -> TrainStep:
    """The plan's training step: of the reference decoder, or of the user's program that its workload refers to.

    Args:
        mesh: the mesh that the plan's axes name; None for an unsharded step on one device.
        impose: hold every operation in the plan's sharding, not the decoder's block boundaries alone.

    Raises:
        InputError: the model is not runnable, or the user's program fails.
        ValueError: the mesh's axes are not the plan's, or the rematerialization is not one that the program has.
    """
    if mesh is not None and dict(mesh.shape) != plan.sizes:
        raise ValueError(f"mesh {dict(mesh.shape)} is not the plan's {plan.sizes}")
    layout = None if mesh is None else Layout(mesh, plan.rules)
    transform = optimizer(plan.workload.optimizer)
    make = _decoder if plan.workload.model is not None else _users
    model, shards, batch = make(plan, layout, transform)
    loss = _imposed(model, layout) if impose and layout is not None else model.loss
    abstract = TrainState(model.params, jax.eval_shape(transform.init, model.params))
    rows = ["batch" in names for names in leaf_dims(batch, model.batch_dims)]
    return TrainStep(
        _step(loss, transform, Microbatches(plan.microbatches, rows, shards.batch), shards),
        _init(model, transform, shards),
        TrainState(
            shards.abstract(abstract.params, shards.params), shards.abstract(abstract.optimizer, shards.optimizer)
        ),
        shards.abstract(batch, shards.batch),
        model,
        layout,
    )


Made = tuple[LossFunction, Storage, Tree]       # one microbatch's program, where its arrays lie, the global batch


def _decoder(plan: Plan, layout: Layout | None, transform: optax.GradientTransformation) -> Made:
    work = plan.workload
    if work.model is None:
        raise ValueError(f"the reference decoder needs a model, got the workload {work.reference}")
    model = loss_function(
        work.model,
        work.batch // plan.microbatches,
        work.seq,
        remat=plan.remat,
        kernels=Kernels(plan.attention, plan.loss_chunks, layout, plan.context_attention),
        compute_dtype=work.compute_dtype,
        parameter_dtype=work.parameter_dtype,
    )
    shards = Storage() if layout is None else Storage.named(model, transform, layout)
    ids = jax.ShapeDtypeStruct((work.batch, work.seq), jnp.int32)
    return model, shards, {"tokens": ids, "targets": ids}


def _users(plan: Plan, layout: Layout | None, transform: optax.GradientTransformation) -> Made:
    """The user's program, its dims named as in the table of its global batch."""
    from jaxplan.workload.loading import load, named, traced

    work = plan.workload
    if plan.remat != AS_WRITTEN:
        raise ValueError(f"{work.name} decides its own rematerialization: expected {AS_WRITTEN}, got {plan.remat}")
    whole, table = load(work, work.batch), traced(work)
    part = whole if plan.microbatches == 1 else load(work, work.batch // plan.microbatches)
    shards = Storage() if layout is None else Storage.traced(table, whole, transform, layout)
    return named(part, table), shards, whole.batch


def _imposed(model: LossFunction, layout: Layout) -> Callable[[Tree, Tree], jax.Array]:
    from jaxplan.workload.impose import impose

    return impose(
        model.loss,
        model.params,
        model.batch,
        layout.rules,
        layout.mesh,
        model.parameter_dims,
        model.batch_dims,
    )


def _init(
    model: LossFunction, transform: optax.GradientTransformation, shards: Storage
) -> Callable[[jax.Array], TrainState]:
    def init(key: jax.Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, transform.init(params))

    if shards.params is None:
        return jax.jit(init)
    return jax.jit(init, out_shardings=TrainState(shards.params, shards.optimizer))


def _step(
    loss: Callable[[Tree, Tree], jax.Array],
    transform: optax.GradientTransformation,
    microbatches: Microbatches,
    shards: Storage,
) -> Callable[[TrainState, Tree], tuple[TrainState, dict[str, jax.Array]]]:
    def gradients(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return value, hold(grads, shards.params)

    def step(state: TrainState, batch: Tree) -> tuple[TrainState, dict[str, jax.Array]]:
        if microbatches.count == 1:
            value, grads = gradients(state.params, batch)
        else:
            value, grads = _accumulated(gradients, state.params, batch, microbatches, shards)
        # ZeRO-1: each data shard updates its slice of the parameters; the update alone is gathered
        grads, params = hold(grads, shards.update), hold(state.params, shards.update)
        updates, moments = transform.update(grads, state.optimizer, params)
        updates = hold(hold(updates, shards.update), shards.params)
        return TrainState(optax.apply_updates(state.params, updates), moments), {"loss": value}

    return step


@dataclass(frozen=True, eq=False)
class Microbatches:
    """How the batch is cut.

    Attributes:
        rows: for each array of the batch, whether its leading dim is the batch: the others are in every part, whole.
        shardings: of the whole batch; None without a mesh.
    """

    count: int
    rows: Sequence[bool]
    shardings: Tree = None

    def split(self, batch: Tree) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Tree]]:
        """The arrays that are cut, as (microbatches, rows, ...), and how to put one part of each into a batch."""
        leaves, structure = jax.tree.flatten(batch)
        shardings = jax.tree.leaves(self.shardings) or [None] * len(leaves)
        cut = [i for i, has_rows in enumerate(self.rows) if has_rows]

        def merge(parts: list[jax.Array]) -> Tree:
            replaced = dict(zip(cut, parts, strict=True))
            return structure.unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])

        return [self._split(leaves[i], shardings[i]) for i in cut], merge

    def _split(self, array: jax.Array, sharding: Any) -> jax.Array:
        # the microbatch is the minor factor of the batch, so that every device's rows stay where they are
        parts = array.reshape(array.shape[0] // self.count, self.count, *array.shape[1:])
        return hold(jnp.swapaxes(parts, 0, 1), None if sharding is None else inner(sharding))


def _accumulated(
    gradients: Callable[[Tree, Tree], tuple[jax.Array, Tree]],
    params: Tree,
    batch: Tree,
    microbatches: Microbatches,
    shards: Storage,
) -> tuple[jax.Array, Tree]:
    """Mean loss and gradients over microbatches, added up in float32 where the parameters are stored."""
    parts, merge = microbatches.split(batch)

    def add(total: tuple[jax.Array, Tree], part: list[jax.Array]) -> tuple[tuple[jax.Array, Tree], None]:
        value, grads = gradients(params, merge(part))
        summed = jax.tree.map(lambda a, g: a + g.astype(jnp.float32), total[1], grads)
        return (total[0] + value.astype(jnp.float32), hold(summed, shards.params)), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    start = (jnp.zeros((), jnp.float32), hold(zeros, shards.params))
    (value, grads), _ = jax.lax.scan(add, start, parts)
    mean = jax.tree.map(lambda g, p: (g / microbatches.count).astype(p.dtype), grads, params)
    return value / microbatches.count, hold(mean, shards.params)
