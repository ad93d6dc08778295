"""Which dims of a program the mesh axes can shard, and how that is said. No JAX here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxplan.plan.sharding import ACTIVATION_DIMS, standard_rules
from jaxplan.workload.table import Leaf, Table

_RULES = standard_rules(sequence_sharding=False, zero1=False).compute
STORAGE_DIMS = tuple(n for n, axes in _RULES.items() if "fsdp" in axes and n not in ACTIVATION_DIMS)
TENSOR_DIMS = tuple(n for n, axes in _RULES.items() if "tensor" in axes and n not in ACTIVATION_DIMS)
SAID_FROM = 0.001       # weights that are whole on every device and make up less are not worth a line


def dim_sizes(table: Table) -> dict[str, int]:
    """What the sizes of each named dim have in common (dims of one name are sharded alike): their greatest divisor."""
    sizes: dict[str, int] = {}
    for dim in table.dims:
        sizes[dim.name] = math.gcd(dim.size, sizes.get(dim.name, dim.size))
    return sizes


def roles_of_dims(table: Table) -> tuple[str, ...]:
    """What the fsdp and tensor axes can shard of a program that named its dims itself, a sentence each."""
    whole = [leaf for leaf in table.parameters if _is_matrix(leaf) and not _has(table, leaf, STORAGE_DIMS)]
    bytes_of = {id(leaf): table.elements(leaf.dims) * leaf.itemsize for leaf in table.parameters}
    out = [
        f"fsdp stores {_sizes(table, STORAGE_DIMS)} in parts"
        if _sizes(table, STORAGE_DIMS)
        else "no dim is shared by the weights, so that nothing is stored over fsdp: only data is searched",
        f"tensor shards {_sizes(table, TENSOR_DIMS)}"
        if _sizes(table, TENSOR_DIMS)
        else "no hidden dim was found that two weights make and contract: tensor is not searched",
    ]
    share = sum(bytes_of[id(leaf)] for leaf in whole) / sum(bytes_of.values())
    if share >= SAID_FROM:
        out.append(f"{len(whole)} weights ({share:.1%} of the bytes) have no dim that fsdp stores in parts")
    return tuple(out)


def _sizes(table: Table, names: Sequence[str]) -> str:
    """`heads 4, mlp 192 and 64`: the dims of these names that parameters have."""
    present = {d for leaf in table.parameters if _is_matrix(leaf) for d in leaf.dims}
    found = {name: sorted({table.dims[d].size for d in present if table.dims[d].name == name}) for name in names}
    return ", ".join(f"{name} {' and '.join(map(str, sizes))}" for name, sizes in found.items() if sizes)


def _has(table: Table, leaf: Leaf, names: Sequence[str]) -> bool:
    return any(table.dims[d].name in names for d in leaf.dims)


def _is_matrix(leaf: Leaf) -> bool:
    return len(leaf.dims) > 1
