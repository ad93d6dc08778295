"""A training state as a list of arrays with paths; a state that cannot be saved safely is refused. Imports JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxplan.checkpoint.record import Leaf
from jaxplan.errors import InputError

UNSUPPORTED = ("uint2", "int2", "uint4")        # tensorstore has no such dtype


@dataclass(frozen=True)
class Flat:
    """A state, flattened: of array i the description is `leaves[i]`, without a digest."""

    arrays: list[Any]
    leaves: tuple[Leaf, ...]
    structure: Any

    def tree(self, arrays: Sequence[Any]) -> Any:
        """The same structure around other arrays."""
        return jax.tree.unflatten(self.structure, arrays)

    def digested(self, digests: Sequence[int]) -> tuple[Leaf, ...]:
        return tuple(replace(leaf, digest=f"{d:08x}") for leaf, d in zip(self.leaves, digests, strict=True))


def flat(tree: Any) -> Flat:
    """A pytree of arrays, or of ShapeDtypeStructs that say where the arrays shall lie.

    Raises:
        InputError: no arrays; a leaf that is none, or says no sharding, or is deleted (donated); a dtype that the
            files cannot hold.
    """
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    if not found:
        raise InputError("the state holds no arrays", "a pytree of jax.Array")
    named = [(jax.tree_util.keystr(path, simple=True, separator=".") or "state", leaf) for path, leaf in found]
    for path, leaf in named:
        _check(path, leaf)
    leaves = tuple(Leaf(path, tuple(leaf.shape), str(leaf.dtype)) for path, leaf in named)
    return Flat([leaf for _, leaf in named], leaves, structure)


def _check(path: str, leaf: Any) -> None:
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        raise InputError(
            f"{path} of the state is a {type(leaf).__name__}",
            "a jax.Array: what lies on no device has no place to be restored to",
            f"jax.device_put({path}, sharding)",
        )
    if leaf.sharding is None:
        raise InputError(
            f"{path} of the asked-for state has no sharding",
            "one, so that it is not restored to wherever it lay when it was saved",
            "jax.ShapeDtypeStruct(shape, dtype, sharding=...)",
        )
    if str(leaf.dtype) in UNSUPPORTED:
        raise InputError(f"{path} is {leaf.dtype}, which orbax's files cannot hold", "another dtype", "int4 or uint8")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise InputError(f"{path} of the state was donated and is gone", "the state that the step returned")


def host_bytes(arrays: Sequence[jax.Array]) -> int:
    """Bytes that this process writes for these arrays: every shard once, whichever devices hold copies."""
    return sum(s.data.nbytes for a in arrays for s in a.addressable_shards if s.replica_id == 0)


def mesh_of(arrays: Sequence[Any]) -> dict[str, int]:
    """Axis to size, of the largest mesh that an array lies on; empty where there is none."""
    meshes = [a.sharding.mesh for a in arrays if isinstance(a.sharding, jax.sharding.NamedSharding)]
    largest = max(meshes, key=lambda mesh: mesh.size, default=None)
    return {} if largest is None else {str(k): int(v) for k, v in dict(largest.shape).items()}
