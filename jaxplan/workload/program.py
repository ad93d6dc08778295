"""Any JAX program as a table: traced once, every dim named, every operation's work and bytes counted.

    table = trace(loss, params, batch)          # shapes are enough: jax.ShapeDtypeStruct

The trace is of `jax.value_and_grad(loss)` over abstract values, so it costs no memory and no device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from jaxplan.workload.interpreter import open_jaxpr, walk
from jaxplan.workload.labels import Array, DraftOperation, Place, Recorder, itemsize
from jaxplan.workload.names import Labelled, name_atoms
from jaxplan.workload.sources import sources
from jaxplan.workload.table import Dim, Leaf, Operation, Read, Shape, Table, Value


@dataclass(frozen=True)
class Inputs:
    """Inputs of one kind: their labels before and after naming, and their abstract values."""

    arrays: list[Array]
    labelled: list[Labelled]
    avals: list[Any]


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
    return build(recorder, names, inputs, batches, state, results, name)


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
            raise ValueError(
                f"expected {len(leaf.shape)} dim names for a tensor of shape {leaf.shape}, got {given}"
            )
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


class _Resolver:
    """Raw shapes and atoms to dims of the table, each once."""

    def __init__(self, recorder: Recorder, names: dict[int, str]) -> None:
        self._atoms, self._names = recorder.atoms, names
        self._index: dict[int, int] = {}
        self._shapes: dict[Shape, Shape] = {}
        self.dims: list[Dim] = []

    def shape(self, raw: Shape) -> Shape:
        """The shape over dim ids; copies without their original turn back into it."""
        if raw not in self._shapes:
            plain = self._atoms.restore(self._atoms.resolve(raw))
            self._shapes[raw] = tuple(tuple(self._dim(atom) for atom in sequence) for sequence in plain)
        return self._shapes[raw]

    def flat(self, raw: Shape) -> tuple[int, ...]:
        """All dims of an operation, each once; copies stay."""
        return tuple(dict.fromkeys(self._dim(atom) for atom in self._atoms.flat(raw)))

    def read(self, raw: Shape) -> Shape:
        """A shape as an operation reads it; copies stay."""
        return tuple(tuple(self._dim(atom) for atom in self._atoms.leaves(sequence)) for sequence in raw)

    def _dim(self, atom: int) -> int:
        if atom not in self._index:
            self._index[atom] = len(self.dims)
            self.dims.append(Dim(self._names.get(atom, f"?{self._atoms.size(atom)}"), self._atoms.size(atom)))
        return self._index[atom]


def build(
    recorder: Recorder,
    names: dict[int, str],
    parameters: Inputs,
    batch: Inputs,
    state: Inputs,
    results: Sequence[Array],
    name: str,
) -> Table:
    """Resolve everything that was recorded, without what nobody reads."""
    resolver = _Resolver(recorder, names)
    roots = recorder.roots | {array.value for array in results if array.value is not None}
    drafts = [draft for draft, live in zip(recorder.operations, _live(recorder, roots), strict=True) if live]
    late = {value for op in drafts if op.phase == "backward" for value, _ in op.reads}
    used = sorted({v for op in drafts for v in (*(r for r, _ in op.reads), *op.writes)})
    index = {raw: i for i, raw in enumerate(used)}
    values = []
    for raw in used:
        draft = recorder.values[raw]
        values.append(
            Value(
                resolver.shape(draft.shape), draft.itemsize, draft.kind, draft.copies, draft.tag, draft.path
            )
        )
    residuals = tuple(
        index[raw]
        for raw in used
        if raw in late
        and recorder.values[raw].phase == "forward"
        and recorder.values[raw].kind == "intermediate"
    )
    operations = tuple(
        Operation(
            primitive=op.primitive,
            kind=op.kind,
            phase=op.phase,
            flops=op.flops,
            reads=tuple(Read(index[value], resolver.read(shape)) for value, shape in op.reads),
            writes=tuple(index[value] for value in op.writes),
            dims=resolver.flat(op.dims),
            contracted=resolver.flat(op.contracted),
            times=op.times,
            scope=op.scope,
            source=op.source,
        )
        for op in drafts
    )

    def state_leaves(inputs: Inputs) -> tuple[Leaf, ...]:
        return tuple(
            Leaf(labelled.path, resolver.shape(labelled.shape), itemsize(aval), str(aval.dtype))
            for labelled, aval in zip(inputs.labelled, inputs.avals, strict=True)
        )

    parameter_leaves, optimizer, batches = state_leaves(parameters), state_leaves(state), state_leaves(batch)
    return Table(
        dims=tuple(resolver.dims),
        values=tuple(values),
        operations=operations,
        residuals=residuals,
        parameters=parameter_leaves,
        optimizer=optimizer,
        batch=batches,
        uncovered=dict(recorder.uncovered),
        name=name,
        compute_dtype=_compute_dtype(recorder, drafts),
    )


def _compute_dtype(recorder: Recorder, operations: Sequence[DraftOperation]) -> str:
    """The dtype of the operands of most matmul FLOPs."""
    flops: Counter[str] = Counter()
    for operation in operations:
        if operation.kind in ("matmul", "attention") and operation.reads:
            flops[recorder.values[operation.reads[0][0]].dtype] += int(operation.flops * operation.times)
    return flops.most_common(1)[0][0] if flops else "float32"


def _live(recorder: Recorder, roots: set[int]) -> list[bool]:
    """Which operations somebody needs: a trace of a gradient has dead ones, which XLA drops as well."""
    wanted = set(roots)
    live = [False] * len(recorder.operations)
    for i in range(len(live) - 1, -1, -1):
        operation = recorder.operations[i]
        if any(value in wanted for value in operation.writes):
            live[i] = True
            wanted.update(value for value, _ in operation.reads)
    return live
