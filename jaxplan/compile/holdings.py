"""What a device and its host hold while a compiled step runs, by XLA's memory analysis. Imports JAX when called."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxplan.compile.environment import Platform
from jaxplan.compile.evidence import Memory
from jaxplan.plan.plan import Plan

if TYPE_CHECKING:
    from jaxplan.workload.step import TrainStep


def memory_of(compiled: Any, platform: Platform, moved: int = 0) -> Memory:
    """What XLA's memory analysis says of one device.

    Args:
        moved: bytes of the state that lie in the host's memory; the host's own compiler counts them as the device's.
    """
    found = compiled.memory_analysis()
    moved = moved if platform == "cpu" else 0
    return Memory(
        platform,
        found.argument_size_in_bytes - moved,
        found.output_size_in_bytes - moved,
        found.alias_size_in_bytes - moved,
        found.temp_size_in_bytes,
        getattr(found, "peak_memory_in_bytes", 0),
        found.host_temp_size_in_bytes + found.host_argument_size_in_bytes + moved,
        getattr(found, "total_allocation_bytes", None),
    )


def bytes_on_host(plan: Plan, step: TrainStep) -> int:
    """Bytes of one device's state that lie in the host's memory between steps: the optimizer's arrays with dims."""
    import jax

    if not plan.offload_optimizer:
        return 0
    return local_bytes([leaf for leaf in jax.tree.leaves(step.abstract_state.optimizer) if leaf.shape])


def local_bytes(tree: Any) -> int:
    """Bytes of one device's shards of a tree of abstract arrays."""
    import math

    import jax

    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def with_kinds(memory: Memory, step: TrainStep, moved: int) -> Memory:
    """The memory by kind: the state's shards as declared, padding with the batch, the rest as it comes."""
    parameters = local_bytes(step.abstract_state.params)
    optimizer = local_bytes(step.abstract_state.optimizer) - moved
    kinds = {
        "parameters": parameters,
        "optimizer": optimizer,
        "batch": memory.argument_bytes - parameters - optimizer,
        "outputs": memory.output_bytes - memory.alias_bytes,
    }
    kinds["temporaries"] = memory.total_bytes - sum(kinds.values())
    return replace(memory, by_kind=kinds)
