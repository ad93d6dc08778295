"""A plan imposed on a program that knows nothing of it: the traced loss, emitted again with sharding constraints.

With shardings of the inputs alone XLA chooses its own layout for the rest. So the results of matmuls, convolutions,
lookups and loops are constrained to what the rules say of their named dims. Weights are not: a constraint constrains
the cotangent as well, and a weight's gradient would be replicated. The cotangent of a matmul's result is constrained to
what the two matmuls read that it goes into, over all dims of the first. The user's code does not change.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.source_info_util import user_context
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxplan.plan.sharding import Rules
from jaxplan.workload.interpreter import inner_jaxpr, is_literal, open_jaxpr, scan_counts, walk
from jaxplan.workload.kernel_rules import KERNEL_PREFIX
from jaxplan.workload.labels import Recorder
from jaxplan.workload.names import name_atoms
from jaxplan.workload.program import add_input
from jaxplan.workload.table import Shape

ANCHORS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated", "gather"})
INLINED = frozenset({"jit", "pjit", "closed_call", "core_call"})
CHECKPOINTS = frozenset({"checkpoint", "remat", "remat2"})
Path = tuple[int, ...]


def impose(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    rules: Rules,
    mesh: Mesh | AbstractMesh,
    parameter_dims: Any = None,
    batch_dims: Any = None,
) -> Callable[[Any, Any], Any]:
    """The same loss, with every operation held in the rules' layout over the mesh.

    Custom derivatives, shard_map, Pallas and jaxplan's own kernels stay as they are; `jax.checkpoint` keeps its
    policies. The result takes arrays of the shapes that are given here.

    Args:
        loss: (params, batch) -> scalar.
        params, batch: pytrees of arrays or `jax.ShapeDtypeStruct`.
        rules: named dims to mesh axes.
        mesh: a mesh of attached or of compile-only devices.
        parameter_dims, batch_dims: given names of dims, as in `program.trace`.
    """
    closed = jax.make_jaxpr(loss)(params, batch)
    recorder = Recorder()
    inputs = add_input(recorder, params, parameter_dims, "parameter")
    batches = add_input(recorder, batch, batch_dims, "batch")
    walk(recorder, closed.jaxpr, [*inputs.arrays, *batches.arrays])
    names = name_atoms(recorder, inputs.labelled, batches.labelled)
    emitter = _Emitter(_Layout(recorder, names, rules.on(mesh.axis_names), mesh))
    structure = jax.tree.structure((params, batch))

    def imposed(params: Any, batch: Any) -> Any:
        leaves, given = jax.tree.flatten((params, batch))
        if given != structure:
            raise ValueError(f"expected (params, batch) of the structure {structure}, got {given}")
        return emitter.run(closed.jaxpr, closed.consts, leaves, ())[0]

    return imposed


@dataclass(frozen=True, eq=False)
class _Layout:
    """Shardings of labelled shapes under rules on a mesh."""

    recorder: Recorder
    names: dict[int, str]
    rules: Rules
    mesh: Mesh | AbstractMesh

    def sharding(self, shape: Shape, whole: Shape = (), table: Shape = ()) -> NamedSharding:
        """The sharding of a shape, in an operation over the atoms of `whole`.

        Where a lookup's `table` is given, the operation runs where the table lies: its owners win.
        """
        atoms = self.recorder.atoms
        shape = atoms.restore(atoms.resolve(shape))
        owners = self._owners([*atoms.flat(shape), *atoms.flat(whole)]) | self._owners(atoms.flat(table))
        spec = [self._dimension(sequence, owners) for sequence in shape]
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def _owners(self, leaves: Sequence[int]) -> dict[str, int]:
        """The atom that owns each axis."""
        leaves = list(dict.fromkeys(leaves))
        names = [self.names.get(atom, "") for atom in leaves]
        return {axis: leaves[i] for axis, i in self.rules.owners(names, self.mesh.axis_names).items()}

    def _dimension(self, sequence: Sequence[int], owners: dict[str, int]) -> tuple[str, ...] | None:
        """Axes of one dimension: a PartitionSpec shards a major prefix only, in equal parts."""
        found: list[str] = []
        for atom in sequence:
            size, mine = self.recorder.atoms.size(atom), []
            for axis in self.rules.compute.get(self.names.get(atom, ""), ()):
                held = math.prod(self.mesh.shape[a] for a in (*mine, axis))
                if owners.get(axis) == atom and size % held == 0:
                    mine.append(axis)
            found += mine
            if math.prod(self.mesh.shape[axis] for axis in mine) != size:
                break
        return tuple(found) or None

    def is_activation(self, shape: Shape) -> bool:
        return any(self.names.get(atom) == "batch" for atom in self.recorder.atoms.flat(shape))


class _Emitter:
    """Runs a jaxpr with constraints; `path` is the place of each equation, as the labels know it."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout

    def run(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any], path: Path) -> list[Any]:
        known = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, operands, strict=True))

        def read(variable: Any) -> Any:
            return variable.val if is_literal(variable) else known[variable]

        for number, equation in enumerate(jaxpr.eqns):
            stack = str(equation.source_info.name_stack)
            arguments = [read(variable) for variable in equation.invars]
            scope = jax.named_scope(stack) if stack else contextlib.nullcontext()
            # compilers and profilers shall name the line of the user's program, not this one
            with user_context(equation.source_info.traceback), scope:
                results = self.step(equation, arguments, (*path, number))
            known.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def step(self, equation: Any, arguments: list[Any], path: Path) -> Sequence[Any]:
        name = equation.primitive.name
        label = equation.params.get("name", "")
        if name in INLINED and not (isinstance(label, str) and label.startswith(KERNEL_PREFIX)):
            return self.inner(inner_jaxpr(equation), arguments, path)
        if name in CHECKPOINTS:
            return self.checkpoint(equation, arguments, path)
        if name == "scan":
            return self.scan(equation, arguments, path)
        if name == "cond":
            return self.cond(equation, arguments, path)
        if name == "gather":
            return self.lookup(equation, arguments, path)
        results = bind(equation, arguments)
        return self.constrained(results, path) if name in ANCHORS else results

    def inner(self, jaxpr: Any, arguments: Sequence[Any], path: Path) -> list[Any]:
        return self.run(open_jaxpr(jaxpr), getattr(jaxpr, "consts", ()), arguments, path)

    def checkpoint(self, equation: Any, arguments: Sequence[Any], path: Path) -> Sequence[Any]:
        params, jaxpr = equation.params, inner_jaxpr(equation)

        def region(*operands: Any) -> list[Any]:
            return self.inner(jaxpr, operands, path)

        return jax.checkpoint(region, policy=params["policy"], prevent_cse=params["prevent_cse"])(*arguments)

    def scan(self, equation: Any, arguments: Sequence[Any], path: Path) -> list[Any]:
        params = equation.params
        constants, carries = scan_counts(params)
        fixed = arguments[:constants]

        def body(carry: Any, part: Any) -> tuple[list[Any], list[Any]]:
            results = self.inner(params["jaxpr"], [*fixed, *carry, *part], path)
            return self.constrained(results[:carries], path), results[carries:]

        carry, stacked = jax.lax.scan(
            body,
            list(arguments[constants : constants + carries]),
            list(arguments[constants + carries :]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *stacked]

    def cond(self, equation: Any, arguments: Sequence[Any], path: Path) -> Sequence[Any]:
        def run(number: int, branch: Any) -> Callable[..., Any]:
            return lambda *operands: self.inner(branch, operands, (*path, number))

        branches = [run(number, branch) for number, branch in enumerate(equation.params["branches"])]
        return jax.lax.switch(arguments[0], branches, *arguments[1:])

    def constrained(self, results: Sequence[Any], path: Path) -> list[Any]:
        """Activations among the results, held in their layout (`zip` ends with the results: a loop's carries lead)."""
        shapes, contracted = self.layout.recorder.outputs[path], self.layout.recorder.contracted.get(path, ())
        return [
            held(result, self.layout.sharding(shape), self.layout.sharding(shape, contracted))
            if self.layout.is_activation(shape) and not is_key(result)
            else result
            for result, shape in zip(results, shapes, strict=False)
        ]

    def lookup(self, equation: Any, arguments: Sequence[Any], path: Path) -> list[Any]:
        """A lookup runs where its table lies, so that indices and rows travel and not the table; so does its gradient.

        Left alone, XLA gathers the table, or falls back to full rematerialization on three mesh axes.
        """
        table, indices, whole = self.layout.recorder.tables[path]
        fixed = () if self.layout.is_activation(table) else table
        here = self.layout.sharding(indices, whole, fixed)
        out = self.layout.recorder.outputs[path][0]
        moved = jax.lax.with_sharding_constraint(arguments[1], here)
        (rows,) = bind(equation, [arguments[0], moved])
        rows = jax.lax.with_sharding_constraint(rows, self.layout.sharding(out, whole, fixed))
        return self.constrained([rows], path)


def held(array: Any, sharding: NamedSharding, cotangent: NamedSharding) -> Any:
    """The array in one sharding, its cotangent in another.

    Where a matmul's result is summed over an axis and scattered, its cotangent is gathered: said aloud, because XLA may
    else keep it scattered for the gradient of the weight, and gather all activations instead of adding up gradients
    (batch and sequence over different axes; jaxlib 0.10.2).
    """
    if sharding == cotangent:
        return jax.lax.with_sharding_constraint(array, sharding)

    def hold(array: Any) -> Any:
        return jax.lax.with_sharding_constraint(array, sharding)

    function = jax.custom_vjp(hold)
    function.defvjp(
        lambda array: (hold(array), None), lambda _, ct: (jax.lax.with_sharding_constraint(ct, cotangent),)
    )
    return function(array)


def is_key(array: Any) -> bool:
    """Whether the array is a typed PRNG key, which has no layout of its own."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def bind(equation: Any, arguments: Sequence[Any]) -> Sequence[Any]:
    """Emit an equation as it was."""
    functions: Sequence[Any] = ()
    params = equation.primitive.get_bind_params(equation.params)
    if isinstance(params, tuple):  # jax 0.10: (functions, parameters)
        functions, params = params
    results = equation.primitive.bind(*functions, *arguments, **params)
    return results if equation.primitive.multiple_results else [results]
