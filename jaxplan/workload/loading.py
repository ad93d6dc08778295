"""A user's program, imported and made regular: flat parameters, named by Flax's metadata where it has names.

Whatever goes wrong in the user's own code is told with the user's own traceback; frames of jaxplan and JAX are left
out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import meta

from jaxplan.errors import InputError
from jaxplan.plan.sharding import PRIORITY
from jaxplan.plan.tree import TreeLeaf
from jaxplan.plan.tree import leaves as tree_leaves
from jaxplan.workload.decoder import LossFunction
from jaxplan.workload.optimizer import leaf_dims, optimizer_of
from jaxplan.workload.program import trace
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Leaf, Table
from jaxplan.workload.user import Program, Reference

Tree = Any
Names = tuple[str | None, ...] | None

KNOWN_DIMS = frozenset({*PRIORITY, "layers", "head_dim", "group"})      # that rules or the namer have a meaning for
OURS = (str(Path(__file__).parents[1]), *(str(Path(m.__file__ or "").parent) for m in (jax, importlib)))
COLLECTION = "params."  # of linen's variables
INITIAL_SCALE = 0.02    # chosen: GPT-2's initial standard deviation; a stand-in, see `load`


def traced(work: Workload) -> Table:
    """The table of a user's training step at its global batch."""
    return _traced(Workload(**{**vars(work), "defaults": ()}))


@lru_cache(maxsize=2)
def _traced(work: Workload) -> Table:
    model = load(work, work.batch)
    with user_code(Reference.parse(work.reference), only_theirs=True):
        return trace(
            model.loss,
            model.params,
            model.batch,
            model.parameter_dims,
            model.batch_dims,
            update=optimizer_of(work),
            name=work.name,
        )


def load(work: Workload, batch: int) -> LossFunction:
    """The program that a workload refers to, for `batch` examples.

    Parameters are a flat dict from path to array. `init` is a stand-in, since a program has none: small normal values.

    Raises:
        InputError: the file changed, has no such function, fails, or makes something that is no program.
    """
    reference = Reference.parse(work.reference)
    if work.program_hash and work.program_hash != reference.digest():
        raise InputError(f"{reference.file} has changed since this job began", "the same program", "again")
    program = _program(reference, batch, work.seq)
    found = tree_leaves(program.params)
    with user_code(reference):
        abstract = jax.eval_shape(lambda: meta.unbox(program.params))
        batch_shapes = jax.eval_shape(lambda: program.batch)
    arrays, structure = jax.tree.flatten(abstract)
    paths = _paths([leaf.path for leaf in found for _ in range(leaf.arrays)])
    _check_floating(reference, paths, arrays)
    batch_dims = _batch_dims(reference, program, batch_shapes, batch)
    params = dict(zip(paths, arrays, strict=True))

    def loss(params: dict[str, jax.Array], batch: Tree) -> jax.Array:
        return program.loss(structure.unflatten([params[path] for path in paths]), batch)

    _check_loss(reference, loss, params, batch_shapes)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(params))
        return {
            path: (INITIAL_SCALE * jax.random.normal(k, leaf.shape, jnp.float32)).astype(leaf.dtype)
            for k, (path, leaf) in zip(keys, params.items(), strict=True)
        }

    dims = _parameter_dims(reference, program, found)
    return LossFunction(loss, params, batch_shapes, dict(zip(paths, dims, strict=True)), batch_dims, init)


def named(model: LossFunction, table: Table) -> LossFunction:
    """The model with every name that a trace found for a whole dim, beside those that it has."""

    def dims(leaves: Sequence[Leaf], given: Sequence[Sequence[str | None] | None]) -> list[Names]:
        found = [[table.dims[d[0]].name if len(d) == 1 else None for d in leaf.shape] for leaf in leaves]
        return [
            tuple(a or b for a, b in zip(mine or names, names, strict=True))
            for mine, names in zip(given, found, strict=True)
        ]

    return model._replace(
        parameter_dims=jax.tree.structure(model.params).unflatten(
            dims(table.parameters, leaf_dims(model.params, model.parameter_dims))
        ),
        batch_dims=jax.tree.structure(model.batch).unflatten(
            dims(table.batch, leaf_dims(model.batch, model.batch_dims))
        ),
    )


@contextlib.contextmanager
def user_code(reference: Reference, only_theirs: bool = False) -> Iterator[None]:
    """What fails inside is the user's: told as an InputError with the traceback of the user's own frames.

    Args:
        only_theirs: let errors pass that come from no frame of the user's: then they are ours.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        if only_theirs and not files & set(map(str, reference.sources())):
            raise
        raise InputError(failure(reference, error)) from error


def failure(reference: Reference, error: BaseException) -> str:
    """`model.py:program failed: ValueError: ...`, then the traceback without the frames that are not the user's."""
    kind = type(error).__name__
    first = str(error).strip().partition("\n")[0]
    told = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = told
    while link is not None:
        mine = [frame for frame in link.stack if not frame.filename.startswith((*OURS, "<frozen"))]
        link.stack = traceback.StackSummary.from_list(mine)
        link.__notes__ = None       # JAX's about the frames that it has left out
        link = link.__cause__ or link.__context__
    text = "".join(told.format()).rstrip()
    return f"{reference.file.name}:{reference.name} failed: {kind}: {first}\n\n{text}"


def _program(reference: Reference, batch: int, seq: int) -> Program:
    """What the function of the file makes, whatever its form."""
    where = f"{reference.file}:{reference.name}"
    module = _module(reference.file, reference.digest())
    function = getattr(module, reference.name, None)
    if not callable(function):
        what = "is not there" if function is None else f"is a {type(function).__name__}"
        raise InputError(f"{where} {what}", "a function (batch, seq) to jaxplan.Program")
    with user_code(reference), nnx.use_eager_sharding(False):
        made = function(*_arguments(where, function, batch, seq))
    if all(hasattr(made, name) for name in ("loss", "params", "batch")):
        parts = [getattr(made, name, None) for name in ("loss", "params", "batch", "parameter_dims", "batch_dims")]
    elif isinstance(made, tuple) and 3 <= len(made) <= 5:
        parts = list(made)
    else:
        raise InputError(
            f"{where} returned a {type(made).__name__}",
            "jaxplan.Program(loss, params, batch), or the tuple of these",
        )
    loss, *rest = parts
    if not callable(loss):
        raise InputError(f"{where}: its loss is a {type(loss).__name__}", "a function (params, batch) to a scalar")
    return Program(loss, *rest)


def _arguments(where: str, function: Any, batch: int, seq: int) -> tuple[int, ...]:
    """(batch, seq), or (batch,) where the function takes no more (images have no sequence)."""
    signature = inspect.signature(function)
    for arguments in ((batch, seq), (batch,)):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return arguments
    raise InputError(f"{where} takes {signature}", "(batch: int, seq: int)")


@lru_cache(maxsize=4)
def _module(file: Path, digest: str) -> Any:
    """The file's module; its folder leads the import path, as if Python had been started with it."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = f"{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file", "a name that ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)     # dataclasses look their module up
    with user_code(Reference(file, "import")), nnx.use_eager_sharding(False):
        spec.loader.exec_module(module)
    return module


def _paths(paths: Sequence[str]) -> list[str]:
    """Paths as unique keys, without what is no key in an optimizer's state: nnx's `value`, linen's `params`."""
    short = [path.removesuffix(".value") for path in paths]
    if all(path.startswith(COLLECTION) for path in short):
        short = [path.removeprefix(COLLECTION) for path in short]
    return [path if short.count(path) == 1 else f"{path}#{i}" for i, path in enumerate(short)]


def _check_floating(reference: Reference, paths: Sequence[str], arrays: Sequence[Any]) -> None:
    named = zip(paths, arrays, strict=True)
    wrong = [f"{path} ({array.dtype})" for path, array in named if not jnp.issubdtype(array.dtype, jnp.floating)]
    if wrong or not arrays:
        raise InputError(
            f"{reference}: params holds {', '.join(wrong[:3]) or 'no array'}",
            "floating-point arrays only, which the loss is differentiated by",
            "nnx.split(model, nnx.Param, ...), or variables['params'], and close over the rest",
        )


def _check_loss(reference: Reference, loss: Any, params: Tree, batch: Tree) -> None:
    with user_code(reference):
        value = jax.eval_shape(loss, params, batch)
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise InputError(f"{reference}: the loss returns a {type(value).__name__}", "one scalar", "the mean loss alone")
    if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
        shape = f"{value.dtype}{list(value.shape)}"
        raise InputError(f"{reference}: the loss is {shape}", "a floating-point scalar", ".mean()")


def _listed(reference: Reference, dims: Tree, count: int, what: str) -> list[Names]:
    """Given names, one tuple a leaf."""
    if dims is None:
        return [None] * count
    names = jax.tree.leaves(dims, is_leaf=lambda x: x is None or isinstance(x, tuple))
    if len(names) != count:
        raise InputError(f"{reference}: {what} has {len(names)} leaves", f"{count}, one tuple of names for each array")
    return names


def _parameter_dims(reference: Reference, program: Program, found: Sequence[TreeLeaf]) -> list[Names]:
    """Names of every parameter: given ones, else Flax's as far as they mean something here."""
    flax_names = [leaf.names for leaf in found for _ in range(leaf.arrays)]
    shapes = [leaf.shape for leaf in found for _ in range(leaf.arrays)]
    given = _listed(reference, program.parameter_dims, len(shapes), "parameter_dims")
    out: list[Names] = []
    for names, metadata, shape in zip(given, flax_names, shapes, strict=True):
        if names is None and metadata is not None and len(metadata) == len(shape):
            names = tuple(name if isinstance(name, str) and name in KNOWN_DIMS else None for name in metadata)
        _check_rank(reference, names, shape)
        out.append(names)
    return out


def _batch_dims(reference: Reference, program: Program, batch: Tree, size: int) -> Tree:
    """Names of every array of the batch; those that are divided have `batch` first."""
    found, structure = jax.tree_util.tree_flatten_with_path(batch)
    given = _listed(reference, program.batch_dims, len(found), "batch_dims")
    out = []
    for (path, leaf), names in zip(found, given, strict=True):
        where = f"{reference}: batch{jax.tree_util.keystr(path)} {list(leaf.shape)}"
        whole = not leaf.shape or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if names is None:
            names = (None if whole else "batch", *(None,) * (len(leaf.shape) - 1))[: len(leaf.shape)]
        _check_rank(reference, names, leaf.shape)
        if "batch" in names and (names[0] != "batch" or leaf.shape[0] != size):
            expected = f"{size} as its leading dim, the batch that the function was asked for"
            raise InputError(where, expected, "batch_dims for an array that has no batch")
        out.append(names)
    if not any("batch" in names for names in out):
        raise InputError(f"{reference}: no array of the batch has the dim batch", "at least one")
    return structure.unflatten(out)


def _check_rank(reference: Reference, names: Names, shape: Sequence[int]) -> None:
    if names is not None and len(names) != len(shape):
        raise InputError(f"{reference}: dims {names} for an array of shape {tuple(shape)}", f"{len(shape)} names")
