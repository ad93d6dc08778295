"""Real optax optimizers by name, and the dims of their state.

Nothing here assumes bytes per parameter: sizes and dtypes come from `jax.eval_shape` of the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jaxplan.errors import InputError
from jaxplan.workload.layout import Names
from jaxplan.workload.shape import Workload
from jaxplan.workload.weights import parameter_dims

Tree = Any

# chosen, not tuned: Llama 3's peak rate and decay (Grattafiori et al. 2024, arXiv:2407.21783, table 3)
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
ADAM: Mapping[str, Any] = {"b1": 0.9, "b2": 0.95}

# Muon's update at the size of AdamW's, so that both take one rate (Liu et al. 2025, arXiv:2502.16982, equation 4)
MUON_RMS = 0.2
MANY = frozenset({"layers", "expert"})          # dims that say which matrix
TABLES = frozenset({"vocab", "positions"})      # dims of tables and of the head, which Muon leaves to AdamW

WHOLE_MATRICES = frozenset({"muon"})            # optimizers that multiply a parameter's matrices (`workload.spread`)

OPTIMIZERS: Mapping[str, Callable[[float, Tree], optax.GradientTransformation]] = {
    "adamw": lambda rate, _: optax.adamw(rate, **ADAM, weight_decay=WEIGHT_DECAY),
    "adamw_bf16": lambda rate, _: optax.adamw(rate, **ADAM, weight_decay=WEIGHT_DECAY, mu_dtype=jnp.bfloat16),
    "adafactor": lambda rate, _: optax.adafactor(rate),
    "lion": lambda rate, _: optax.lion(rate, weight_decay=WEIGHT_DECAY),
    "muon": lambda rate, dims: _muon(rate, dims),
    "momentum": lambda rate, _: optax.sgd(rate, momentum=0.9),
    "sgd": lambda rate, _: optax.sgd(rate),
}


def optimizer(
    name: str, learning_rate: float = LEARNING_RATE, dims: Tree = None
) -> optax.GradientTransformation:
    """The optimizer of that name; `adamw_bf16` keeps the first moment in bfloat16.

    Args:
        dims: the names of every parameter's dims, as a tree of the parameters' structure: `muon` must know which dims
            are a matrix. Without names it takes every parameter with two dims, as optax does.

    Raises:
        InputError: no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer {name!r}", f"one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](learning_rate, dims)


def optimizer_of(work: Workload) -> optax.GradientTransformation:
    """The optimizer of a workload; the reference decoder's parameters have names.

    Raises:
        InputError: no such optimizer, or the decoder cannot be built.
    """
    return optimizer(work.optimizer, dims=None if work.model is None else parameter_dims(work.model))


def _muon(rate: float, dims: Tree) -> optax.GradientTransformation:
    """Muon on the layers' matrices (Jordan et al. 2024; Liu et al. 2025), AdamW on tables, head, norms and biases.

    optax gives that AdamW Nesterov's momentum (Dozat 2016).

    A stacked parameter is one matrix a layer (and an expert). A projection's first dim is one side of its matrix, the
    others together are the other: at this size of the update it does not matter which of them is contracted.
    """
    numbers = None if dims is None else jax.tree.map(_matrix, dims, is_leaf=lambda names: isinstance(names, tuple))
    return contrib.muon(
        rate,
        weight_decay=WEIGHT_DECAY,
        adam_b1=ADAM["b1"],
        adam_b2=ADAM["b2"],
        adam_weight_decay=WEIGHT_DECAY,
        consistent_rms=MUON_RMS,
        muon_weight_dimension_numbers=None if numbers is None else lambda _: numbers,
    )


def is_matrix(names: Names) -> bool:
    """Whether a parameter with these dims is a stack of matrices that a layer multiplies by."""
    return len([name for name in names if name not in MANY]) > 1 and not TABLES & set(names)


def _matrix(names: Names) -> contrib.MuonDimensionNumbers | None:
    """Which dims of a parameter are the sides of its matrices; None for what is none."""
    if not is_matrix(names):
        return None
    sides = [i for i, name in enumerate(names) if name not in MANY]
    return contrib.MuonDimensionNumbers(sides[0], tuple(sides[1:]))


def leaf_dims(tree: Any, dims: Any) -> list[Names]:
    """The dim names of every leaf of `tree`, ordered as `jax.tree.leaves`; `dims` has its structure."""
    return jax.tree.structure(tree).flatten_up_to(dims)


def owners(state: Tree, params: Tree) -> list[int]:
    """For every leaf of an optimizer's state the number of the parameter that it belongs to, -1 for none.

    State that belongs to parameters has their tree somewhere inside its own: a leaf's path ends with its parameter's.
    """
    paths = {path: i for i, (path, _) in enumerate(jax.tree_util.tree_flatten_with_path(params)[0])}
    found = []
    for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]:
        ends = (paths[path[start:]] for start in range(len(path)) if path[start:] in paths)
        found.append(next(ends, -1))        # the longest end first
    return found


def state_dims(transform: optax.GradientTransformation, params: Any, parameter_dims: Any) -> list[Names]:
    """The dim names of every leaf of the optimizer's state, in the order of `jax.tree.leaves`.

    A leaf that mirrors a parameter has its dims; a reduced one (Adafactor's rows and columns) those left;
    whatever belongs to no parameter has none.
    """
    names = leaf_dims(params, parameter_dims)
    sizes = [leaf.shape for leaf in jax.tree.leaves(params)]
    state = jax.eval_shape(transform.init, params)
    return [
        (None,) * len(leaf.shape) if owner < 0 else _kept(names[owner], sizes[owner], leaf.shape)
        for leaf, owner in zip(jax.tree.leaves(state), owners(state, params), strict=True)
    ]


def _kept(names: Names, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Names:
    """Names of the dims of `sizes` that are left in `shape`, in order; None where they do not match."""
    kept: list[str | None] = []
    position = 0
    for size in shape:
        while position < len(sizes) and sizes[position] != size:
            position += 1
        kept.append(names[position] if position < len(sizes) else None)
        position += 1
    return tuple(kept)
