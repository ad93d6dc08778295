"""Which mesh axis shards which dim, in every tensor and every operation. No JAX here.

A rule sends a dim's name to mesh axes. In one tensor (or one operation) a mesh axis can shard a single dim, so where
several dims of it have a rule for the same axis, the one that comes first in `PRIORITY` owns the axis:

- fully-sharded storage is `embed -> fsdp` at the lowest priority: a weight has no `batch`, so `embed` owns `fsdp`; an
  activation has, so `batch` does, and the weight is gathered where the two meet;
- a vector (a norm's scale, a bias) has one dim beside `layers` and is sharded by its layers alone;
- sequence sharding at the boundary is `seq -> tensor` below `heads` and `mlp`: inside a block the heads or the hidden
  units own `tensor`, between blocks the sequence does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxplan.workload.table import Shape

Spec = tuple[tuple[str, ...], ...]      # one tuple of mesh axes per tensor dimension; () is not sharded

#: Every mesh axis that a plan can have, outermost first. An axis is named after its role, but for `group`, which has
#: the role `tensor` as well: it splits the query heads of one key-value head, which is then on several devices.
AXES: tuple[str, ...] = ("stage", "data", "fsdp", "expert", "context", "tensor", "group")
ROLE_OF_AXIS = {axis: axis for axis in AXES} | {"group": "tensor"}

ACTIVATION_DIMS = ("batch", "seq", "slot", "room")     # that only activations have
PRIORITY = (
    *("layers", "expert", "batch", "heads", "group", "kv_heads", "mlp", "vocab"),
    *("seq", "slot", "room", "embed"),
)
TENSOR_AXES = ("tensor", "group")
BATCH_AXES = ("data", "fsdp", "expert")                 # over which a microbatch's rows lie inside of the layers
STORED_OVER = ("fsdp", "context", "expert", "stage")    # that store weights in parts

#: Axes on whose devices a dim has copies: nothing that comes after it shards them, either. Devices of a group share a
#: key-value head; each has all of its sequence, which its own query heads need.
COPIED: Mapping[str, tuple[str, ...]] = {"kv_heads": ("group",)}
STACKS = ("layers", "dense_layers")             # dims that stack the weights of equal blocks
STORED_DIMS = ("embed", "q_rank", "kv_rank")    # by which weights are stored in parts; ranks: of latent attention


def sizes_in_order(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of all `AXES`, 1 where an axis is not given."""
    unknown = set(sizes) - set(AXES)
    if unknown:
        raise ValueError(f"axes must be among {', '.join(AXES)}, got {', '.join(sorted(unknown))}")
    return tuple(sizes.get(axis, 1) for axis in AXES)


@dataclass(frozen=True)
class Rules:
    """Named dims to mesh axes.

    Attributes:
        compute: rules that hold in operations, and in the storage of everything but the optimizer.
        optimizer: rules that replace those of `compute` in the optimizer's state (ZeRO-1: `embed` also over `data`).
        gradients: the same for gradients that are kept over microbatches (ZeRO-2).
        priority: dim names, the first owner of a contested axis first; unnamed dims come last.
    """

    compute: Mapping[str, tuple[str, ...]]
    optimizer: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gradients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    priority: tuple[str, ...] = PRIORITY

    @property
    def storage(self) -> Rules:
        """The rules under which parameters and gradients are kept.

        They have no `batch` and no `seq` to shard, even where the program makes one dim of `seq` and the rows of a
        table of positions.
        """
        kept = {name: axes for name, axes in self.compute.items() if name not in ACTIVATION_DIMS}
        return replace(self, compute=kept)

    @property
    def storage_of_optimizer(self) -> Rules:
        """The rules under which the optimizer's state is kept: its own in place of the parameters'."""
        return Rules({**self.storage.compute, **self.optimizer}, priority=self.priority)

    @property
    def storage_of_gradients(self) -> Rules:
        """The rules under which gradients are kept until the update."""
        return Rules({**self.storage.compute, **self.gradients}, priority=self.priority)

    @property
    def input(self) -> Rules:
        """The rules under which a batch arrives: whole sequences, which is what an input pipeline delivers."""
        return Rules({"batch": self.compute.get("batch", ())}, priority=self.priority)

    def on(self, axes: Iterable[str]) -> Rules:
        """The same rules on a mesh that has these axes only."""
        kept = set(axes)

        def cut(rules: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
            found = {name: tuple(axis for axis in mine if axis in kept) for name, mine in rules.items()}
            return {name: mine for name, mine in found.items() if mine}

        return Rules(cut(self.compute), cut(self.optimizer), cut(self.gradients), self.priority)

    def owners(self, names: Sequence[str], axes: Iterable[str]) -> dict[str, int]:
        """For each mesh axis, the position in `names` of the dim that it shards; axes that shard none are left out."""
        if sum(name not in STACKS for name in names) < 2 and "batch" not in names:
            # a vector (a norm's scale, a bias): gathering it would cost more than it saves
            names = [name if name in STACKS else "" for name in names]
        rank = {name: i for i, name in enumerate(self.priority)}
        found: dict[str, int] = {}
        for axis in axes:
            mine = [(*self.compute.get(name, ()), *COPIED.get(name, ())) for name in names]
            holders = [i for i, held in enumerate(mine) if axis in held]
            owner = min(holders, key=lambda i: (rank.get(names[i], len(rank)), i), default=None)
            if owner is not None and axis in self.compute.get(names[owner], ()):
                found[axis] = owner
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
            "gradients": {k: list(v) for k, v in self.gradients.items()},
            "priority": list(self.priority),
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Rules:
        return cls(
            {k: tuple(v) for k, v in data["compute"].items()},
            {k: tuple(v) for k, v in data["optimizer"].items()},
            {k: tuple(v) for k, v in data["gradients"].items()},
            tuple(data["priority"]),
        )


def standard_rules(
    sequence_sharding: bool, zero1: bool, zero2: bool = False, experts: bool = False, latent: bool = False
) -> Rules:
    """The rules of every role, over all `AXES`; `Rules.on` leaves those of a mesh.

    A microbatch's rows lie over every axis that is no tensor or context axis: `expert` computes on rows outside of the
    experts, `stage` outside of the layers. What stores weights in parts (`embed`) are those axes and `context`, but for
    `data`, which replicates: fully-sharded inside of a group, replicated over groups (HSDP).

    Args:
        sequence_sharding: shard the residual stream's sequence over the tensor axes between blocks
            (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        zero1: shard the optimizer's state over `data` as well (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1).
        zero2: the gradients that are kept over microbatches, too (the same, section 5.2).
        experts: the model has a mixture of experts.
        latent: the model has latent attention, whose up-projections have a rank where others have `embed`. Ranks are
            small: `data` does not divide their optimizer state, nor do stages, which divide the layers already.
    """
    sequence = ("context", *TENSOR_AXES) if sequence_sharding else ("context",)
    compute = {
        "layers": ("stage",),
        "batch": (*BATCH_AXES, "stage"),
        "heads": TENSOR_AXES,
        "kv_heads": ("tensor",),
        "group": ("group",),
        "mlp": TENSOR_AXES,
        "vocab": TENSOR_AXES,
        "seq": sequence,
        "embed": STORED_OVER,
    }
    if experts:
        # places of tokens at experts: with a capacity along the sequence, without one along all of it but `context`
        compute |= {"expert": ("expert",), "slot": sequence, "room": ("context",)}
    if latent:
        compute |= dict.fromkeys(STORED_DIMS[1:], STORED_OVER[:-1])
    over_data = {"embed": (*STORED_OVER, "data")}
    return Rules(compute, over_data if zero1 else {}, over_data if zero2 else {})
