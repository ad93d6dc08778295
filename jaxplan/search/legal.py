"""Why a mesh or a set of rules is illegal for a workload: one sentence each, which serve as counter keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jaxplan.plan.plan import CONTEXT_ATTENTION, LANES, rules_of
from jaxplan.plan.sharding import STORED_DIMS, STORED_OVER, Rules
from jaxplan.search.dims import STORAGE_DIMS, TENSOR_DIMS
from jaxplan.workload.shape import Workload

SHARED_DIMS = ("heads", "mlp", "vocab")     # over both tensor axes


@dataclass(frozen=True)
class RuleSet:
    """Decisions that go with the mesh: what lies over `data`, how the sequence does, where the optimizer's state is."""

    zero1: bool
    sequence_sharding: bool
    zero2: bool = False
    context: str = "ring"
    offload_optimizer: bool = False

    def rules(self, workload: Workload) -> Rules:
        """The rules of this set, over all axes."""
        return rules_of(workload, self.sequence_sharding, self.zero1, self.zero2)


def rule_sets(workload: Workload, host: bool) -> tuple[RuleSet, ...]:
    """All sets that make a difference to some mesh.

    Args:
        host: also those that keep the optimizer's state in the host's memory.
    """
    zeros = ((False, False), (True, False), (True, True))
    plain = [RuleSet(z1, s, z2) for z1, z2 in zeros for s in (True, False)]
    if workload.model is None:
        return tuple(plain)
    others = [RuleSet(z1, True, z2, c) for z1, z2 in zeros for c in CONTEXT_ATTENTION if c != "ring"]
    offloaded = [RuleSet(z1, True, z2, offload_optimizer=True) for z1, z2 in zeros] if host else []
    return (*plain, *others, *offloaded)


def mesh_reason(of: Mapping[str, int], workload: Workload, limits: Mapping[str, int]) -> str:
    """Why these mesh sizes (by axis) are illegal for every plan, or an empty text."""
    return _rows(of, workload) or _weights(of, limits) or _tokens(of, workload) or _parts(of, workload, limits)


def _rows(of: Mapping[str, int], workload: Workload) -> str:
    axes = [axis for axis in ("expert", "stage") if of[axis] > 1]
    if workload.batch % (of["data"] * of["fsdp"]):
        return "batch is not divisible by data x fsdp"
    if workload.batch % math.prod(of[axis] for axis in ("data", "fsdp", *axes)):
        return f"batch is not divisible by {' x '.join(['data', 'fsdp', *axes])}"
    return ""


def _weights(of: Mapping[str, int], limits: Mapping[str, int]) -> str:
    stored = math.prod(of[axis] for axis in STORED_OVER)
    if limits.get("embed", stored) % stored:
        return f"embed is not divisible by {_stored_over(of)}"
    parts = stored // of["stage"]
    for rank in STORED_DIMS[1:]:
        if limits.get(rank, parts) % parts:
            return f"{rank} is not divisible by {_stored_over(of)}"
    for dim in TENSOR_DIMS:
        if limits.get(dim, of["tensor"]) % of["tensor"]:
            return f"{dim} is not divisible by tensor"
        both = of["tensor"] * of["group"]
        if dim in SHARED_DIMS and limits.get(dim, both) % both:
            return f"{dim} is not divisible by tensor x group"
    if limits.get("group", of["group"]) % of["group"]:
        return "a key-value head's queries are not divisible by group"
    for axis, dims in (("fsdp", STORAGE_DIMS), ("tensor", TENSOR_DIMS)):
        if of[axis] > 1 and not set(dims) & set(limits):
            return f"{axis} has no dim of a weight to shard"
    return ""


def _stored_over(of: Mapping[str, int]) -> str:
    """One text for all meshes but the plainest, so that reasons stay few."""
    return "fsdp" if all(of[axis] == 1 for axis in STORED_OVER[1:]) else " x ".join(STORED_OVER)


def _tokens(of: Mapping[str, int], workload: Workload) -> str:
    """The sequence over `context`: each device has two chunks, the i-th and the i-th from the end."""
    if of["context"] == 1:
        return ""
    if workload.seq % (2 * of["context"]):
        return "seq is not divisible by twice context"
    if workload.seq // (2 * of["context"]) % LANES:
        return f"a device's chunk of the sequence is no multiple of {LANES} tokens, a kernel's least block"
    return ""


def _parts(of: Mapping[str, int], workload: Workload, limits: Mapping[str, int]) -> str:
    """Whole experts, layers and query groups."""
    model = workload.model
    if model is None:
        return ""
    if of["group"] > 1 and of["tensor"] != model.kv_heads:
        return "a key-value head's queries are split (group) only where tensor is kv_heads"
    if of["expert"] > 1 and (model.experts is None or model.experts.experts % of["expert"]):
        return "expert does not divide the experts"
    if of["stage"] > 1 and model.repeated_layers % of["stage"]:
        return "stages do not divide the layers"
    return ""


def rules_reason(of: Mapping[str, int], rules: RuleSet, workload: Workload, limits: Mapping[str, int]) -> str:
    """Why this rule set is illegal (or says nothing new) on these mesh sizes, or an empty text."""
    return _zero(of, rules, limits) or _sequence(of, rules, limits) or _context(of, rules, workload)


def _zero(of: Mapping[str, int], rules: RuleSet, limits: Mapping[str, int]) -> str:
    if rules.zero1 and of["data"] == 1:
        return "ZeRO-1 shards nothing where data is 1"
    if rules.zero1 and limits.get("embed", 1) % (of["data"] * math.prod(of[axis] for axis in STORED_OVER)):
        return "embed is not divisible by fsdp x data (ZeRO-1)"
    if rules.zero2 and of["stage"] > 1:
        return "ZeRO-2 keeps no gradients between the microbatches of a pipeline"
    return ""


def _sequence(of: Mapping[str, int], rules: RuleSet, limits: Mapping[str, int]) -> str:
    tensor = of["tensor"] * of["group"]
    if not rules.sequence_sharding and tensor == 1:
        return "sequence sharding changes nothing where tensor is 1"
    if not rules.sequence_sharding and "seq" not in limits:
        return "sequence sharding changes nothing where there is no sequence"
    if not rules.sequence_sharding and (of["context"] > 1 or of["stage"] > 1):
        return "context and stage axes come with sequence sharding"
    if rules.sequence_sharding and limits.get("seq", tensor) % (tensor * of["context"]):
        return "seq is not divisible by tensor" if of["context"] == 1 else "seq is not divisible by context x tensor"
    return ""


def _context(of: Mapping[str, int], rules: RuleSet, workload: Workload) -> str:
    if rules.context == "ring":
        return ""
    if of["context"] == 1:
        return "ring or ulysses makes no difference where context is 1"
    if workload.model is not None and workload.model.kv_heads // of["tensor"] % of["context"]:
        return "ulysses: a device's kv_heads are not divisible by context"
    return ""
