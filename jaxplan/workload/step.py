"""A whole training step of a plan: gradients over microbatches, optimizer update, every sharding pinned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxplan.errors import InputError
from jaxplan.plan.plan import Plan
from jaxplan.plan.schedule import SCHEDULES
from jaxplan.workload.accumulation import Gradients, Loss, Microbatches, Replicas, accumulated
from jaxplan.workload.decoder import Kernels, LossFunction, loss_function
from jaxplan.workload.host import offloaded
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import WHOLE_MATRICES, leaf_dims, optimizer_of
from jaxplan.workload.spread import spread
from jaxplan.workload.storage import Storage, hold
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
        function: (state, batch) to (state, metrics): the mean loss as `loss`, and the gradients' norm as
            `gradient_norm` where it was asked for; to be jitted with `jit`.
        gradients: (params, batch) to the mean loss and its gradients, which lie where they are kept until the update.
        init: a key to a state, made where it is stored.
        abstract_state: ShapeDtypeStructs, with NamedShardings on a mesh.
        abstract_batch: the same for the global batch (the decoder's: `tokens` and `targets`, (B, S) int32).
        model: the functional view of what is differentiated at once: of one microbatch, on one replica where their
            gradients are summed once a step, of the whole batch where stages have the microbatches.
    """

    function: Callable[[TrainState, Tree], tuple[TrainState, dict[str, jax.Array]]]
    gradients: Gradients
    init: Callable[[jax.Array], TrainState]
    abstract_state: TrainState
    abstract_batch: Tree
    model: LossFunction
    layout: Layout | None
    metrics: tuple[str, ...] = ("loss",)

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
            out_shardings=(state, dict.fromkeys(self.metrics, replicated)),
            donate_argnums=0,
        )

    def lower(self) -> Any:
        """The step lowered for the mesh's devices; they need not exist."""
        return self.jit.lower(self.abstract_state, self.abstract_batch)


def build(plan: Plan, mesh: Mesh | None = None, *, impose: bool = True, norm: bool = False) -> TrainStep:
    """The plan's training step: of the reference decoder, or of the user's program that its workload refers to.

    Args:
        mesh: the mesh that the plan's axes name; None for an unsharded step on one device.
        impose: hold every operation in the plan's sharding, not the decoder's block boundaries alone. What runs in
            stages needs no holding: its program is written for one device.
        norm: also return the gradients' norm.

    Raises:
        InputError: the model is not runnable, the schedule is none of ours, or the user's program fails.
        ValueError: the mesh's axes are not the plan's, or the rematerialization is not one that the program has.
    """
    if mesh is not None and dict(mesh.shape) != plan.sizes:
        raise ValueError(f"mesh {dict(mesh.shape)} is not the plan's {plan.sizes}")
    layout = None if mesh is None else Layout(mesh, plan.rules)
    transform = optimizer_of(plan.workload)
    parts = Parts.of(plan, layout)
    make = _decoder if plan.workload.model is not None else _users
    model, shards, batch = make(plan, layout, parts, transform)
    rows = ["batch" in names for names in leaf_dims(batch, model.batch_dims)]
    held = parts.layout if impose and plan.stages == 1 else None
    loss = model.loss if held is None else _imposed(model, held)
    gradients = _gradients(parts, loss, rows, shards)
    abstract = TrainState(model.params, jax.eval_shape(transform.init, model.params))
    update = transform
    if layout is not None and plan.workload.optimizer in WHOLE_MATRICES:
        names = leaf_dims(model.params, model.parameter_dims)
        update = spread(transform, names, model.params, shards.update, layout.mesh)
    if layout is not None and plan.offload_optimizer:
        update, shards = offloaded(update), shards.offloaded(abstract.optimizer)
    return TrainStep(
        _step(gradients, update, shards, norm),
        gradients,
        _init(model, update, shards),
        TrainState(
            shards.abstract(abstract.params, shards.params), shards.abstract(abstract.optimizer, shards.optimizer)
        ),
        shards.abstract(batch, shards.batch),
        model,
        layout,
        ("loss", "gradient_norm") if norm else ("loss",),
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """How a step is cut into what is differentiated at once.

    Attributes:
        count: microbatches that follow each other; stages cut the batch themselves.
        layout: of the program that is differentiated.
        replicas: axes over which gradients are summed once a step, after the last microbatch; none where XLA sums
            them: it does so once, too, where there is one microbatch, and ZeRO-2 wants it after each.
    """

    count: int
    layout: Layout | None
    replicas: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan, layout: Layout | None) -> Parts:
        if plan.stages > 1:
            if not SCHEDULES[plan.schedule].executable:
                known = [name for name, schedule in SCHEDULES.items() if schedule.executable]
                raise InputError(f"schedule {plan.schedule}, which is priced only", f"one of {', '.join(known)}")
            return cls(1, layout)
        # XLA's partitioner dies of lookups in a user's program that is partly manual (jaxlib 0.10.2)
        users = plan.workload.model is None
        if layout is None or plan.microbatches == 1 or plan.zero2 or users:
            return cls(plan.microbatches, layout)
        replicas = tuple(axis.name for axis in plan.axes if axis.role == "data" and axis.size > 1)
        return cls(plan.microbatches, replace(layout, around=replicas), replicas)

    def rows(self, batch: int) -> int:
        """Rows that are differentiated at once, of a batch of so many."""
        shards = self.layout.size(self.replicas) if self.layout is not None else 1
        return batch // (self.count * shards)


Made = tuple[LossFunction, Storage, Tree]       # the program, where the step's arrays lie, the global batch


def _decoder(plan: Plan, layout: Layout | None, parts: Parts, transform: optax.GradientTransformation) -> Made:
    work = plan.workload
    if work.model is None:
        raise ValueError(f"the reference decoder needs a model, got the workload {work.reference}")
    model = loss_function(
        work.model,
        parts.rows(work.batch),
        work.seq,
        remat=plan.remat,
        kernels=Kernels(
            plan.attention,
            plan.loss_chunks,
            parts.layout,
            plan.context_attention,
            plan.microbatches // parts.count,
            plan.repeats,
            work.dispatch,
            work.capacity_factor,
            plan.expert_groups,
        ),
        compute_dtype=work.compute_dtype,
        parameter_dtype=work.parameter_dtype,
    )
    shards = Storage() if layout is None else Storage.named(model, transform, layout)
    ids = jax.ShapeDtypeStruct((work.batch, work.seq), jnp.int32)
    return model, shards, {"tokens": ids, "targets": ids}


def _users(plan: Plan, layout: Layout | None, parts: Parts, transform: optax.GradientTransformation) -> Made:
    """The user's program, its dims named as in the table of its global batch."""
    from jaxplan.workload.loading import load, named, traced

    work = plan.workload
    if plan.remat != AS_WRITTEN:
        raise ValueError(f"{work.name} decides its own rematerialization: expected {AS_WRITTEN}, got {plan.remat}")
    whole, table = load(work, work.batch), traced(work)
    part = whole if parts.rows(work.batch) == work.batch else load(work, parts.rows(work.batch))
    shards = Storage() if layout is None else Storage.traced(table, whole, transform, layout)
    return named(part, table), shards, whole.batch


def _imposed(model: LossFunction, layout: Layout) -> Loss:
    from jaxplan.workload.impose import impose

    def emitted() -> Loss:
        rules, dims = layout.rules.on(layout.axes), (model.parameter_dims, model.batch_dims)
        return impose(model.loss, model.params, model.batch, rules, layout.here, *dims)

    # inside of a manual region the mesh is another: there the program is traced where it is called
    return (lambda params, batch: emitted()(params, batch)) if layout.around else emitted()


def _init(
    model: LossFunction, transform: optax.GradientTransformation, shards: Storage
) -> Callable[[jax.Array], TrainState]:
    def init(key: jax.Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, transform.init(params))

    if shards.params is None:
        return jax.jit(init)
    return jax.jit(init, out_shardings=TrainState(shards.params, shards.optimizer))


def _gradients(parts: Parts, loss: Loss, rows: list[bool], shards: Storage) -> Gradients:
    """Mean loss and gradients of the global batch, as the plan adds them up."""
    if parts.layout is None or not parts.replicas:
        return accumulated(loss, Microbatches(parts.count, rows, shards.batch), shards.gradients)
    whole = replace(parts.layout, around=())
    replicas = Replicas(whole, parts.replicas, shards.params, shards.update)

    def alone(params: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        microbatches = Microbatches(parts.count, rows, replicas.within(shards.batch))
        return accumulated(loss, microbatches, replicas.within(shards.params))(params, batch)

    return replicas.once(alone, rows)


def global_norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of all arrays together, summed in float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)))


def _step(
    gradients: Gradients, transform: optax.GradientTransformation, shards: Storage, norm: bool
) -> Callable[[TrainState, Tree], tuple[TrainState, dict[str, jax.Array]]]:
    def step(state: TrainState, batch: Tree) -> tuple[TrainState, dict[str, jax.Array]]:
        value, grads = gradients(state.params, batch)
        metrics = {"loss": value, **({"gradient_norm": global_norm(grads)} if norm else {})}
        # ZeRO-1: each data shard updates its slice of the parameters; the update alone is gathered
        grads, params = hold(grads, shards.update), hold(state.params, shards.update)
        updates, moments = transform.update(grads, state.optimizer, params)
        updates = hold(hold(updates, shards.update), shards.params)
        return TrainState(optax.apply_updates(state.params, updates), moments), metrics

    return step
