"""Real optax optimizers by name, and the dims of their state.

Nothing here assumes bytes per parameter: sizes and dtypes come from `jax.eval_shape` of the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxplan.errors import InputError
from jaxplan.workload.layout import Names

# chosen, not tuned: Llama 3's peak rate and decay (Grattafiori et al. 2024, arXiv:2407.21783, table 3)
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1

OPTIMIZERS: Mapping[str, Callable[[float], optax.GradientTransformation]] = {
    "adamw": lambda rate: optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=WEIGHT_DECAY),
    "adamw_bf16": lambda rate: optax.adamw(
        rate, b1=0.9, b2=0.95, weight_decay=WEIGHT_DECAY, mu_dtype=jnp.bfloat16
    ),
    "adafactor": lambda rate: optax.adafactor(rate),
    "lion": lambda rate: optax.lion(rate, weight_decay=WEIGHT_DECAY),
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "sgd": lambda rate: optax.sgd(rate),
}


def optimizer(name: str, learning_rate: float = LEARNING_RATE) -> optax.GradientTransformation:
    """The optimizer of that name; `adamw_bf16` keeps the first moment in bfloat16.

    Raises:
        InputError: no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer {name!r}", f"one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](learning_rate)


def leaf_dims(tree: Any, dims: Any) -> list[Names]:
    """The dim names of every leaf of `tree`, ordered as `jax.tree.leaves`; `dims` has its structure."""
    return jax.tree.structure(tree).flatten_up_to(dims)


def state_dims(transform: optax.GradientTransformation, params: Any, parameter_dims: Any) -> list[Names]:
    """The dim names of every leaf of the optimizer's state, in the order of `jax.tree.leaves`.

    A leaf that mirrors a parameter has its dims; a reduced one (Adafactor's rows and columns) those left;
    whatever belongs to no parameter has none.
    """
    structure, names = jax.tree.structure(params), leaf_dims(params, parameter_dims)
    sizes = [leaf.shape for leaf in jax.tree.leaves(params)]
    state = jax.eval_shape(transform.init, params)
    owners = optax.tree_map_params(
        transform,
        lambda _, owner: owner,
        state,
        structure.unflatten(range(structure.num_leaves)),
        transform_non_params=lambda _: -1,
    )
    return [
        (None,) * len(leaf.shape) if owner < 0 else _kept(names[owner], sizes[owner], leaf.shape)
        for leaf, owner in zip(jax.tree.leaves(state), jax.tree.leaves(owners), strict=True)
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
