"""Any JAX program as a table: traced once, every dim named, every operation's work and bytes counted.

    table = trace(loss, params, batch)          # shapes are enough: jax.ShapeDtypeStruct

The trace is of `jax.value_and_grad(loss)` over abstract values, so it costs no memory and no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from jaxplan.workload.assembly import Assembly
from jaxplan.workload.interpreter import open_jaxpr, walk
from jaxplan.workload.labels import Array, Place, Recorder, itemsize
from jaxplan.workload.names import Labelled, name_atoms
from jaxplan.workload.sources import sources
from jaxplan.workload.table import Shape, Table


@dataclass(frozen=True)
class Inputs:
    """Inputs of one kind: their labels before and after naming, and their abstract values."""

    arrays: list[Array]
    labelled: list[Labelled]
    avals: list[Any]

    @property
    def leaves(self) -> list[tuple[str, Shape, int, str]]:
        """(path, shape over atoms, bytes per element, dtype) of each."""
        return [
            (one.path, one.shape, itemsize(aval), str(aval.dtype))
            for one, aval in zip(self.labelled, self.avals, strict=True)
        ]


def trace(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    parameter_dims: Any = None,
    batch_dims: Any = None,
    update: optax.GradientTransformation | None = None,
    name: str = "",
) -> Table:
    """The table of one training step.

    Args:
        loss: (params, batch) -> scalar, differentiable in params.
        params: pytree of arrays or `jax.ShapeDtypeStruct`.
        batch: pytree of arrays or `jax.ShapeDtypeStruct`; the leading dim of each is the batch.
        parameter_dims: pytree like `params` whose leaves are tuples of dim names, None where unknown.
        batch_dims: the same for `batch`.
        update: the optimizer; its update is traced too, and its state is named.
        name: the table's name.

    Raises:
        ValueError: given dims do not fit the tensors.
        TypeError: the loss is not a scalar (from JAX).
    """
    recorder = Recorder()
    inputs = add_input(recorder, params, parameter_dims, "parameter")
    batches = add_input(recorder, batch, batch_dims, "batch")
    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(params, batch)
    results = walk(recorder, open_jaxpr(jaxpr), [*inputs.arrays, *batches.arrays])
    for gradient, parameter in zip(results[1:], inputs.arrays, strict=True):
        recorder.unify(parameter.shape, gradient.shape)
    state = Inputs([], [], [])
    if update is not None:
        state = _update(recorder, update, params, inputs, results[1:])
    names = name_atoms(recorder, inputs.labelled, batches.labelled)
    texts = sources(recorder, results[1:], [labelled.path for labelled in inputs.labelled])
    for operation, text in zip(recorder.operations, texts, strict=True):
        operation.source = text
    recorder.roots.update(array.value for array in results if array.value is not None)
    return Assembly(recorder, names).table(inputs.leaves, state.leaves, batches.leaves, name)


def add_input(recorder: Recorder, tree: Any, dims: Any, kind: str) -> Inputs:
    """Fresh labels for the leaves of a pytree of inputs."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    given = _given_dims(dims, [leaf for _, leaf in leaves], jax.tree.structure(tree))
    inputs = Inputs([], [], [])
    for (path, leaf), names in zip(leaves, given, strict=True):
        shape = recorder.atoms.fresh(leaf.shape, kind)
        text = path_text(path)
        inputs.arrays.append(recorder.add_value(leaf, shape, kind=kind, path=text))
        inputs.labelled.append(Labelled(text, shape, names))
        inputs.avals.append(leaf)
    return inputs


def path_text(path: Iterable[Any]) -> str:
    """`layers.query`: the keys of a pytree path, joined."""
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _given_dims(dims: Any, leaves: Sequence[Any], structure: Any) -> list[tuple[str | None, ...] | None]:
    """The given names of each leaf, checked against its rank."""
    if dims is None:
        return [None] * len(leaves)
    names = jax.tree.leaves(dims, is_leaf=lambda x: x is None or isinstance(x, tuple))
    if len(names) != len(leaves):
        raise ValueError(f"expected dims for {len(leaves)} leaves of {structure}, got {len(names)}")
    for leaf, given in zip(leaves, names, strict=True):
        if given is not None and len(given) != len(leaf.shape):
            raise ValueError(f"expected {len(leaf.shape)} dim names for a tensor of shape {leaf.shape}, got {given}")
    return names


def _update(
    recorder: Recorder,
    update: optax.GradientTransformation,
    params: Any,
    inputs: Inputs,
    gradients: Sequence[Array],
) -> Inputs:
    """Trace the optimizer's update over the gradients, its state and the parameters."""
    abstract = jax.eval_shape(lambda p: p, params)
    state = jax.eval_shape(update.init, abstract)
    states = add_input(recorder, state, None, "optimizer")

    def apply(grads: Any, state: Any, params: Any) -> Any:
        changes, state = update.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    jaxpr = jax.make_jaxpr(apply)(abstract, state, abstract)
    with recorder.at(Place(phase="update")):
        results = walk(recorder, open_jaxpr(jaxpr), [*gradients, *states.arrays, *inputs.arrays])
    for before, after in zip([*inputs.arrays, *states.arrays], results, strict=True):
        recorder.unify(before.shape, after.shape)
    recorder.roots.update(array.value for array in results if array.value is not None)
    return states
