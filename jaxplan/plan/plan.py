"""A plan: every decision about how one training step is laid out over one machine. No JAX here."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from jaxplan.machine.topology import Machine
from jaxplan.plan.schedule import layer_order, reason
from jaxplan.plan.sharding import AXES, BATCH_AXES, ROLE_OF_AXIS, Rules, sizes_in_order, standard_rules
from jaxplan.workload.shape import Workload

MAX_LOGITS = 2**28      # elements: 1 GiB of float32 logits beside what else lives while the loss runs
LANES = 128             # width of a TPU register and of a GPU matmul's tile

ROLES = ("data", "fsdp", "tensor", "context", "expert", "stage")
ALWAYS = ("data", "fsdp", "tensor")         # axes that every plan has, if only of size 1
CONTEXT_ATTENTION = ("ring", "ulysses")


@dataclass(frozen=True)
class MeshAxis:
    """One axis of the mesh: its name, its size in devices, and what it does (its role)."""

    name: str
    size: int
    role: str

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"axis {self.name}: size must be at least 1, got {self.size}")
        if self.role not in ROLES:
            raise ValueError(f"axis {self.name}: role must be one of {', '.join(ROLES)}, got {self.role!r}")


@dataclass(frozen=True)
class Plan:
    """The decisions. What is known about their consequences is in `plan.record`.

    Attributes:
        axes: the mesh's axes, outermost first; their sizes multiply up to the machine's devices.
        zero1: optimizer state sharded over `data` as well.
        zero2: gradients sharded over `data` as well.
        sequence_sharding: the residual stream is sharded over `tensor` along the sequence between blocks.
        context_attention: how attention sees all keys where the sequence is sharded over `context`: `ring` (keys and
            values go round) or `ulysses` (sequence shards are exchanged for heads).
        schedule, repeats: the order of microbatches over `stage` (`plan.schedule`), and how many separate pieces of
            the model each stage has.
        offload_optimizer: the optimizer's state lies in the host's memory between updates.
        remat: the rematerialization policy's name (`plan.remat`).
        microbatches: sequential parts of the global batch: their gradients are accumulated, or, where there are stages,
            they follow each other through them.
        loss_chunks: sequential parts of a device's vocabulary in which logits are made, so that they do not dominate.
        attention: the kernel: `splash` (TPU), `cudnn` (NVIDIA), `blockwise` (anywhere), `as-written` (users').
        compiler_flags: XLA options that the step is compiled with.
    """

    machine: Machine
    workload: Workload
    axes: tuple[MeshAxis, ...]
    remat: str
    microbatches: int
    attention: str
    zero1: bool = False
    sequence_sharding: bool = True
    loss_chunks: int = 1
    zero2: bool = False
    context_attention: str = "ring"
    schedule: str = "gpipe"
    repeats: int = 1
    offload_optimizer: bool = False
    compiler_flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("microbatches", "loss_chunks", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        size = math.prod(axis.size for axis in self.axes)
        if size != self.machine.devices:
            raise ValueError(
                f"mesh axes multiply up to {size} devices, the machine {self.machine.name} has {self.machine.devices}"
            )
        if len({axis.name for axis in self.axes}) != len(self.axes):
            raise ValueError(f"mesh axes must have different names, got {[axis.name for axis in self.axes]}")
        if self.context_attention not in CONTEXT_ATTENTION:
            raise ValueError(
                f"context_attention must be one of {', '.join(CONTEXT_ATTENTION)}, got {self.context_attention!r}"
            )
        for count, words in ((self.microbatches, "microbatches"), (self.stages, "stage")):
            if self.workload.batch % (self.batch_shards * count):
                axes = " x ".join(axis for axis in BATCH_AXES if axis in self.sizes)
                raise ValueError(
                    f"batch {self.workload.batch} is not divisible by {axes} x {words} = {self.batch_shards * count}"
                )
        if self.zero2 and not self.zero1:
            raise ValueError("zero2 shards gradients as zero1 shards the optimizer's state, got zero2 alone")
        self._check_decoder_axes()

    def _check_decoder_axes(self) -> None:
        """The axes that only the reference decoder knows, and what they ask of the other decisions."""
        used = [axis for axis in ("stage", "expert", "context", "group") if self.size(axis) > 1]
        model = self.workload.model
        if used and model is None:
            raise ValueError(f"{', '.join(used)} axes need the reference decoder, got the program {self.workload.name}")
        if model is None or not used:
            return
        if not self.sequence_sharding and self.size("tensor") > 1 and ("stage" in used or "context" in used):
            raise ValueError("stage and context axes beside tensor need sequence_sharding, got none")
        broken = reason(self.schedule, self.stages, self.microbatches, self.repeats, model.repeated_layers)
        if broken:
            raise ValueError(f"{self.schedule} over {self.stages} stages: {broken}")

    def size_of_role(self, role: str) -> int:
        """Product of the sizes of the axes with that role (1 where there is none)."""
        return math.prod(axis.size for axis in self.axes if axis.role == role)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name to size, in mesh order."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def roles(self) -> dict[str, str]:
        return {axis.name: axis.role for axis in self.axes}

    def size(self, axis: str) -> int:
        """Size of the axis of that name, 1 where the mesh has none."""
        return self.sizes.get(axis, 1)

    @property
    def stages(self) -> int:
        return self.size("stage")

    @property
    def sequence_shards(self) -> int:
        """Into how many parts a row's sequence is cut between blocks."""
        tensor = self.size_of_role("tensor") if self.sequence_sharding else 1
        return self.size_of_role("context") * tensor

    @property
    def expert_groups(self) -> int:
        """Groups of a row whose tokens experts take together: one a shard of the sequence.

        Twice as many where a shard has two pieces of the sequence (ring attention's zig-zag order), so that a group is
        one piece of it and the same tokens in any order.
        """
        two = self.context_attention == "ring" and self.size_of_role("context") > 1
        tensor = self.sequence_shards // self.size_of_role("context")
        return self.sequence_shards * (2 if two and tensor % 2 else 1)

    @property
    def batch_shards(self) -> int:
        """Into how many parts a microbatch's rows are cut inside of the layers."""
        return math.prod(self.size(axis) for axis in BATCH_AXES)

    @cached_property
    def rules(self) -> Rules:
        return rules_of(self.workload, self.sequence_sharding, self.zero1, self.zero2).on(self.sizes)

    @property
    def local_sequences(self) -> int:
        """Sequences of one microbatch on one batch shard."""
        return self.workload.batch // (self.batch_shards * self.microbatches)

    @property
    def label(self) -> str:
        """`fsdp=32 tensor=4`: the axes that are larger than 1."""
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes if axis.size > 1) or "one device"

    @property
    def layer_order(self) -> tuple[int, ...]:
        """The model's layer at each stored index, where a circular pipeline has an order of its own; else empty."""
        if self.workload.model is None or self.repeats == 1:
            return ()
        return layer_order(self.workload.model.repeated_layers, self.stages, self.repeats)

    def with_flags(self, flags: Mapping[str, str]) -> Plan:
        return replace(self, compiler_flags=dict(flags))

    def decisions(self) -> dict:
        """Everything decided, as plain data: what the fingerprint covers."""
        return {
            "machine": self.machine.to_json(),
            "workload": self.workload.to_json(),
            "mesh": [{"axis": a.name, "size": a.size, "role": a.role} for a in self.axes],
            "remat": self.remat,
            "microbatches": self.microbatches,
            "loss_chunks": self.loss_chunks,
            "attention": self.attention,
            "zero1": self.zero1,
            "zero2": self.zero2,
            "sequence_sharding": self.sequence_sharding,
            "context_attention": self.context_attention,
            "schedule": self.schedule,
            "repeats": self.repeats,
            "offload_optimizer": self.offload_optimizer,
            "compiler_flags": dict(self.compiler_flags),
        }

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.decisions(), sort_keys=True).encode()).hexdigest()[:16]


def rules_of(workload: Workload, sequence_sharding: bool, zero1: bool, zero2: bool) -> Rules:
    """The rules of a workload's plans, over all axes (`sharding.standard_rules`)."""
    model = workload.model
    experts = model is not None and model.experts is not None
    latent = model is not None and model.latent_attention is not None
    return standard_rules(sequence_sharding, zero1, zero2, experts, latent)


def mesh_axes(sizes: Mapping[str, int]) -> tuple[MeshAxis, ...]:
    """The mesh of these sizes by axis (`plan.sharding.AXES`): those larger than 1, and the three that every plan has.

    Raises:
        ValueError: an axis of another name.
    """
    found = zip(AXES, sizes_in_order(sizes), strict=True)
    return tuple(MeshAxis(a, size, ROLE_OF_AXIS[a]) for a, size in found if size > 1 or a in ALWAYS)


@lru_cache
def divisors(n: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


@lru_cache
def loss_chunks_for(local_tokens: int, local_vocab: int) -> int:
    """The fewest chunks of a device's vocabulary that leave at most `MAX_LOGITS` logits at a time.

    Chunks of whole `LANES` are preferred where they cost at most half as many chunks again.
    """
    found = divisors(local_vocab)
    few = next((n for n in found if local_tokens * (local_vocab // n) <= MAX_LOGITS), local_vocab)
    whole = [n for n in found if few <= n <= few * 3 // 2 and local_vocab // n % LANES == 0]
    return whole[0] if whole else few
