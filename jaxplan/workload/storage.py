"""Where a training step's arrays lie on a mesh: parameters, update, optimizer state, batch, microbatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.plan.record import LeafSpec, leaf_specs
from jaxplan.plan.sharding import Spec
from jaxplan.workload.decoder import LossFunction
from jaxplan.workload.host import on_host
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims, state_dims
from jaxplan.workload.table import Table

Tree = Any


@dataclass(frozen=True, eq=False)
class Storage:
    """One sharding a leaf; trees of None without a mesh.

    Attributes:
        params: of the parameters.
        gradients: of the gradients that are kept until the update: with the parameters, or divided further (ZeRO-2).
        update: of the update, which is computed where the optimizer's state lies (ZeRO-1).
        optimizer: of the optimizer's state.
        batch: of the batch's arrays.
    """

    params: Tree = None
    gradients: Tree = None
    update: Tree = None
    optimizer: Tree = None
    batch: Tree = None

    @classmethod
    def named(cls, model: LossFunction, transform: optax.GradientTransformation, layout: Layout) -> Storage:
        """By the names that the model gives all its dims."""
        structure = jax.tree.structure(model.params)
        names = leaf_dims(model.params, model.parameter_dims)
        state = jax.eval_shape(transform.init, model.params)
        of_state = state_dims(transform, model.params, model.parameter_dims)
        rows = leaf_dims(model.batch, model.batch_dims)
        return cls(
            structure.unflatten([layout.sharding(layout.parameter_spec(n)) for n in names]),
            structure.unflatten([layout.sharding(layout.gradient_spec(n)) for n in names]),
            structure.unflatten([layout.sharding(layout.optimizer_spec(n)) for n in names]),
            jax.tree.structure(state).unflatten([layout.sharding(layout.optimizer_spec(n)) for n in of_state]),
            jax.tree.structure(model.batch).unflatten(
                [layout.sharding(layout.spec([name if name == "batch" else None for name in n])) for n in rows]
            ),
        )

    @classmethod
    def traced(
        cls, table: Table, model: LossFunction, transform: optax.GradientTransformation, layout: Layout
    ) -> Storage:
        """By the names that a trace found, as `plan.json` has them."""
        names = [dim.name for dim in table.dims]
        kept, late = layout.rules.storage_of_gradients, layout.rules.storage_of_optimizer

        def shardings(specs: list[Spec], like: Tree) -> Tree:
            found = [layout.sharding(PartitionSpec(*[axes or None for axes in spec])) for spec in specs]
            return jax.tree.structure(like).unflatten(found)

        def recorded(leaves: tuple[LeafSpec, ...], like: Tree) -> Tree:
            return shardings([leaf.spec for leaf in leaves], like)

        parameters, moments, batch = leaf_specs(table, layout.rules, layout.axes)
        return cls(
            recorded(parameters, model.params),
            shardings([kept.spec(leaf.shape, names, layout.axes) for leaf in table.parameters], model.params),
            shardings([late.spec(leaf.shape, names, layout.axes) for leaf in table.parameters], model.params),
            recorded(moments, jax.eval_shape(transform.init, model.params)),
            recorded(batch, model.batch),
        )

    def offloaded(self, state: Tree) -> Storage:
        """The same with the optimizer's state, which is like `state`, in the host's memory."""
        return self if self.optimizer is None else replace(self, optimizer=on_host(self.optimizer, state))

    def abstract(self, tree: Tree, shardings: Tree) -> Tree:
        """ShapeDtypeStructs that lie as `shardings` say; as they are where there are none."""
        if shardings is None:
            return tree
        return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, shardings)


def hold(tree: Tree, shardings: Tree) -> Tree:
    """The tree, held in these shardings; as it is where there are none."""
    return tree if shardings is None else jax.lax.with_sharding_constraint(tree, shardings)


def inner(sharding: NamedSharding) -> NamedSharding:
    """The sharding of an array with one more, leading dim, which is not sharded."""
    return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
