"""Which mesh axis shards which dim, in every tensor and every operation. No JAX here.

A rule sends a dim's name to mesh axes. In one tensor (or one operation) a mesh axis can shard a single dim, so where
several dims of it have a rule for the same axis, the one that comes first in `PRIORITY` owns the axis:

- fully-sharded storage is `embed -> fsdp` at the lowest priority: a weight has no `batch`, so `embed` owns `fsdp`; an
  activation has, so `batch` does, and the weight is gathered where the two meet;
- a vector (a norm's scale, a bias) has one dim beside `layers` and is never sharded;
- sequence sharding at the boundary is `seq -> tensor` below `heads` and `mlp`: inside a block the heads or the hidden
  units own `tensor`, between blocks the sequence does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxplan.workload.table import Shape

Spec = tuple[tuple[str, ...], ...]      # one tuple of mesh axes per tensor dimension; () is not sharded

ACTIVATION_DIMS = ("batch", "seq")     # that only activations have
PRIORITY = ("batch", "expert", "heads", "kv_heads", "mlp", "vocab", "seq", "embed")


@dataclass(frozen=True)
class Rules:
    """Named dims to mesh axes.

    Attributes:
        compute: rules that hold in operations, and in the storage of everything but the optimizer.
        optimizer: rules that replace those of `compute` in the optimizer's state (ZeRO-1: `embed` also over `data`).
        priority: dim names, the first owner of a contested axis first; unnamed dims come last.
    """

    compute: Mapping[str, tuple[str, ...]]
    optimizer: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    priority: tuple[str, ...] = PRIORITY

    @property
    def storage(self) -> Rules:
        """The rules under which parameters and gradients are kept.

        They have no `batch` and no `seq` to shard, even where the program makes one dim of `seq` and the rows of a
        table of positions.
        """
        kept = {name: axes for name, axes in self.compute.items() if name not in ACTIVATION_DIMS}
        return Rules(kept, self.optimizer, self.priority)

    @property
    def storage_of_optimizer(self) -> Rules:
        """The rules under which the optimizer's state is kept: its own in place of the parameters'."""
        return Rules({**self.storage.compute, **self.optimizer}, {}, self.priority)

    @property
    def input(self) -> Rules:
        """The rules under which a batch arrives: whole sequences, which is what an input pipeline delivers."""
        return Rules({"batch": self.compute.get("batch", ())}, {}, self.priority)

    def owners(self, names: Sequence[str], axes: Iterable[str]) -> dict[str, int]:
        """For each mesh axis, the position in `names` of the dim that it shards; axes that shard none are left out."""
        if sum(name != "layers" for name in names) < 2 and "batch" not in names:
            return {}       # a vector (a norm's scale, a bias): gathering it would cost more than it saves
        rank = {name: i for i, name in enumerate(self.priority)}
        found: dict[str, int] = {}
        for axis in axes:
            holders = [i for i, name in enumerate(names) if axis in self.compute.get(name, ())]
            if holders:
                found[axis] = min(holders, key=lambda i: (rank.get(names[i], len(rank)), i))
        return found

    def spec(self, shape: Shape, names: Sequence[str], axes: Sequence[str], context: Sequence[int] = ()) -> Spec:
        """The mesh axes of each tensor dimension.

        Args:
            shape: the tensor's dimensions as sequences of dim ids, major first.
            names: the name of every dim id.
            axes: the mesh's axes, in mesh order.
            context: further dim ids of the operation that reads the tensor so: they may own an axis, too.
        """
        ids = [d for sequence in shape for d in sequence]
        owners = self.owners([names[d] for d in [*ids, *(c for c in context if c not in ids)]], axes)
        out, position = [], 0
        for sequence in shape:
            mine: list[str] = []
            for offset in range(len(sequence)):
                # a dim's axes keep the order of its rule: (fsdp, data) refines (fsdp,), (data, fsdp) does not
                rule = self.compute.get(names[ids[position + offset]], ())
                mine += [axis for axis in rule if owners.get(axis) == position + offset]
            out.append(tuple(mine))
            position += len(sequence)
        return tuple(out)

    def to_json(self) -> dict:
        return {
            "compute": {k: list(v) for k, v in self.compute.items()},
            "optimizer": {k: list(v) for k, v in self.optimizer.items()},
            "priority": list(self.priority),
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Rules:
        return cls(
            {k: tuple(v) for k, v in data["compute"].items()},
            {k: tuple(v) for k, v in data["optimizer"].items()},
            tuple(data["priority"]),
        )


def standard_rules(sequence_sharding: bool, zero1: bool) -> Rules:
    """The rules of data, fsdp and tensor parallelism.

    Args:
        sequence_sharding: shard the residual stream's sequence over `tensor` between blocks
            (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        zero1: shard the optimizer's state over `data` as well (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1).
    """
    compute = {
        "batch": ("data", "fsdp"),
        "heads": ("tensor",),
        "kv_heads": ("tensor",),
        "mlp": ("tensor",),
        "vocab": ("tensor",),
        "embed": ("fsdp",),
    }
    if sequence_sharding:
        compute["seq"] = ("tensor",)
    return Rules(compute, {"embed": ("fsdp", "data")} if zero1 else {})
