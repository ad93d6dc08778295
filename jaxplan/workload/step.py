"""A whole training step of a plan: gradients over microbatches, optimizer update, every sharding pinned."""

from __future__ import annotations

from collections.abc import Callable
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
from jaxplan.workload.optimizer import leaf_dims, optimizer, state_dims

Tree = Any
MICROBATCHES = (None, "batch", None)


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
        abstract_batch: the same for `tokens` and `targets`, (B, S) int32 of the global batch.
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
    """The plan's training step of the reference decoder.

    Args:
        mesh: the mesh that the plan's axes name; None for an unsharded step on one device.
        impose: hold every operation in the plan's sharding, not the decoder's block boundaries alone.

    Raises:
        InputError: the model is not runnable.
        ValueError: the plan has no model, or the mesh's axes are not the plan's.
    """
    work = plan.workload
    if work.model is None:
        raise ValueError(f"the reference decoder needs a model, got the workload {work.reference}")
    if mesh is not None and dict(mesh.shape) != plan.sizes:
        raise ValueError(f"mesh {dict(mesh.shape)} is not the plan's {plan.sizes}")
    layout = None if mesh is None else Layout(mesh, plan.rules)
    model = loss_function(
        work.model,
        work.batch // plan.microbatches,
        work.seq,
        remat=plan.remat,
        kernels=Kernels(plan.attention, plan.loss_chunks, layout),
        compute_dtype=work.compute_dtype,
        parameter_dtype=work.parameter_dtype,
    )
    transform = optimizer(work.optimizer)
    shards = Storage.of(model, transform, layout)
    loss = _imposed(model, layout) if impose and layout is not None else model.loss
    ids = jax.ShapeDtypeStruct((work.batch, work.seq), jnp.int32, sharding=shards.ids)
    return TrainStep(
        _step(loss, transform, plan.microbatches, shards),
        _init(model, transform, shards),
        shards.abstract(model, transform),
        {"tokens": ids, "targets": ids},
        model,
        layout,
    )


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


@dataclass(frozen=True, eq=False)
class Storage:
    """Where the state lies: one sharding a leaf, None without a mesh.

    Attributes:
        params: of the parameters and their gradients.
        update: of the update, which is computed where the optimizer's state lies (ZeRO-1).
        optimizer: of the optimizer's state.
        ids: of the batch.
        microbatches: of the batch as (microbatches, sequences, S).
    """

    params: Tree
    update: Tree
    optimizer: Tree
    ids: Any = None
    microbatches: Any = None

    @classmethod
    def of(
        cls, model: LossFunction, transform: optax.GradientTransformation, layout: Layout | None
    ) -> Storage:
        if layout is None:
            return cls(None, None, None)
        structure = jax.tree.structure(model.params)
        names = leaf_dims(model.params, model.parameter_dims)
        state = jax.eval_shape(transform.init, model.params)
        of_state = state_dims(transform, model.params, model.parameter_dims)
        return cls(
            structure.unflatten([layout.sharding(layout.parameter_spec(n)) for n in names]),
            structure.unflatten([layout.sharding(layout.optimizer_spec(n)) for n in names]),
            jax.tree.structure(state).unflatten(
                [layout.sharding(layout.optimizer_spec(n)) for n in of_state]
            ),
            layout.sharding(layout.spec(("batch", None))),
            layout.sharding(layout.spec(MICROBATCHES)),
        )

    def abstract(self, model: LossFunction, transform: optax.GradientTransformation) -> TrainState:
        state = TrainState(model.params, jax.eval_shape(transform.init, model.params))
        if self.params is None:
            return state
        return jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
            state,
            TrainState(self.params, self.optimizer),
        )


def hold(tree: Tree, shardings: Tree) -> Tree:
    """The tree, held in these shardings; as it is where there are none."""
    return tree if shardings is None else jax.lax.with_sharding_constraint(tree, shardings)


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
    microbatches: int,
    shards: Storage,
) -> Callable[[TrainState, Tree], tuple[TrainState, dict[str, jax.Array]]]:
    def gradients(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return value, hold(grads, shards.params)

    def step(state: TrainState, batch: Tree) -> tuple[TrainState, dict[str, jax.Array]]:
        if microbatches == 1:
            value, grads = gradients(state.params, batch)
        else:
            value, grads = _accumulated(gradients, state.params, batch, microbatches, shards)
        # ZeRO-1: each data shard updates its slice of the parameters; the update alone is gathered
        grads, params = hold(grads, shards.update), hold(state.params, shards.update)
        updates, moments = transform.update(grads, state.optimizer, params)
        updates = hold(hold(updates, shards.update), shards.params)
        return TrainState(optax.apply_updates(state.params, updates), moments), {"loss": value}

    return step


def _accumulated(
    gradients: Callable[[Tree, Tree], tuple[jax.Array, Tree]],
    params: Tree,
    batch: Tree,
    microbatches: int,
    shards: Storage,
) -> tuple[jax.Array, Tree]:
    """Mean loss and gradients over microbatches, added up in float32 where the parameters are stored."""

    def split(ids: jax.Array) -> jax.Array:
        # the microbatch is the minor factor of the batch, so that every device's rows stay where they are
        parts = ids.reshape(ids.shape[0] // microbatches, microbatches, ids.shape[1])
        return hold(jnp.swapaxes(parts, 0, 1), shards.microbatches)

    def add(total: tuple[jax.Array, Tree], part: Tree) -> tuple[tuple[jax.Array, Tree], None]:
        value, grads = gradients(params, part)
        summed = jax.tree.map(lambda a, g: a + g.astype(jnp.float32), total[1], grads)
        return (total[0] + value, hold(summed, shards.params)), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    start = (jnp.zeros((), jnp.float32), hold(zeros, shards.params))
    (value, grads), _ = jax.lax.scan(add, start, jax.tree.map(split, batch))
    mean = jax.tree.map(lambda g, p: (g / microbatches).astype(p.dtype), grads, params)
    return value / microbatches, mean
