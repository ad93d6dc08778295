"""Any pytree of training state as a list of leaves with paths, sizes and names. Imports JAX when called.

Flax keeps the names of a parameter's dims in boxes: linen in `Partitioned` and `LogicallyPartitioned`, nnx
in the metadata of a `Variable`. A box counts as one leaf here, whatever is in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Name = str | tuple[str, ...] | None
# the key under which nnx keeps a Variable's names: today's, and the two before it
NNX_KEYS = ("out_sharding", "sharding_names", "sharding")
# attribute or key under which training states of Flax and of this package keep the optimizer's
OPTIMIZER_KEYS = ("opt_state", "optimizer")


@dataclass(frozen=True)
class TreeLeaf:
    """One array of a pytree.

    Attributes:
        path: the keys that lead to it, joined by dots.
        names: the names of its dims, or mesh axes, from Flax metadata; None where it has none.
        optimizer: whether it belongs to an optimizer's state.
        arrays: how many arrays the box holds (1 unless it is empty).
    """

    path: str
    shape: tuple[int, ...]
    itemsize: int
    dtype: str
    names: tuple[Name, ...] | None
    optimizer: bool
    arrays: int = 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


def leaves(tree: Any) -> list[TreeLeaf]:
    """The leaves of a pytree in the order of `jax.tree.leaves`; shapes alone are read."""
    import jax

    boxes = _box_types()
    states = [p for p, node in _flatten(tree, _is_optax_state) if _is_optax_state(node)]
    found = []
    for path, node in _flatten(tree, lambda node: isinstance(node, boxes)):
        arrays = jax.tree.leaves(node)
        if not arrays:
            continue
        optimizer = _is_optimizer(path, node) or any(path[: len(state)] == state for state in states)
        array = arrays[0]
        dtype = getattr(array, "dtype", None)
        found.append(
            TreeLeaf(
                path=".".join(_texts(path)),
                shape=tuple(getattr(array, "shape", ())),
                itemsize=int(getattr(dtype, "itemsize", 0)) or 4,
                dtype=str(dtype) if dtype is not None else type(array).__name__,
                names=_names(node) if isinstance(node, boxes) else None,
                optimizer=optimizer,
                arrays=len(arrays),
            )
        )
    return found


def unflatten(tree: Any, values: Sequence[Any], found: Sequence[TreeLeaf]) -> Any:
    """A pytree of the structure of `tree` with one of `values` for every leaf of `found`."""
    import jax

    flat = [value for value, leaf in zip(values, found, strict=True) for _ in range(leaf.arrays)]
    return jax.tree.unflatten(jax.tree.structure(tree), flat)


def segments(path: str) -> tuple[str, ...]:
    """A path in any spelling (`layers.query`, `layers/query`, `['layers']['query']`) as its keys."""
    for mark in "[]'\"/":
        path = path.replace(mark, ".")
    return tuple(part for part in path.split(".") if part)


def _flatten(tree: Any, is_leaf: Any) -> list[tuple[tuple[Any, ...], Any]]:
    import jax

    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]


def _texts(path: Iterable[Any]) -> list[str]:
    return [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]


def _box_types() -> tuple[type, ...]:
    """The classes of Flax that carry names; none where nobody imported Flax: then the tree has none."""
    if "flax" not in sys.modules:
        return ()
    from flax import nnx
    from flax.core.meta import AxisMetadata

    return (AxisMetadata, nnx.Variable)


def _names(box: Any) -> tuple[Name, ...] | None:
    """The names in a box; None where it has none."""
    names = getattr(box, "names", None)
    metadata = box.get_metadata() if hasattr(box, "get_metadata") else {}
    for key in NNX_KEYS:
        names = metadata.get(key) if names is None else names
    names = getattr(names, "spec", names)  # a NamedSharding
    if names is None:
        return None
    return tuple(tuple(name) if isinstance(name, list | tuple) else name for name in names)


def _is_optax_state(node: Any) -> bool:
    kind = type(node)
    return (
        isinstance(node, tuple) and hasattr(node, "_fields") and kind.__module__.partition(".")[0] == "optax"
    )


def _is_optimizer(path: tuple[Any, ...], node: Any) -> bool:
    nnx_state = any(kind.__name__ == "OptState" for kind in type(node).__mro__)
    return nnx_state or any(text in OPTIMIZER_KEYS for text in _texts(path))
