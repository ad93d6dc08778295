"""How long a save and a restore take: bytes over rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxplan.goodput.checks import not_negative, positive


@dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
        bytes: of all arrays, each counted once.
        read_bytes: what all hosts read together to restore: an array that is replicated is read for every replica.
    """

    bytes: float
    read_bytes: float

    def __post_init__(self) -> None:
        positive(bytes=self.bytes)
        not_negative(read_bytes=self.read_bytes)


@dataclass(frozen=True)
class Storage:
    """Where checkpoints go: what one host reaches, and what the store takes from all of them together.

    Attributes:
        total_bytes_per_s: infinite where only the hosts limit it.
    """

    host_bytes_per_s: float
    total_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name in ("host_bytes_per_s", "total_bytes_per_s"):
            if not getattr(self, name) > 0:     # neither 0, nor negative, nor NaN
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if math.isinf(self.host_bytes_per_s) and math.isinf(self.total_bytes_per_s):
            raise ValueError("host_bytes_per_s or total_bytes_per_s must be finite")

    def seconds(self, nbytes: float, hosts: int) -> float:
        """Time for `nbytes` spread evenly over the hosts: the slower of hosts and store."""
        positive(hosts=hosts)
        return max(nbytes / (hosts * self.host_bytes_per_s), nbytes / self.total_bytes_per_s)


def save_s(state: State, storage: Storage, hosts: int) -> float:
    """Replicas share the writing (Orbax: `use_replica_parallel`), so that every byte is written once."""
    return storage.seconds(state.bytes, hosts)


def restore_s(state: State, storage: Storage, hosts: int) -> float:
    """Every host reads what its devices hold."""
    return storage.seconds(state.read_bytes, hosts)


def block_s(state: State, hosts: int, host_link_bytes_per_s: float) -> float:
    """How long an asynchronous save stops training: each host copies its part of the state to its memory.

    Args:
        host_link_bytes_per_s: between all devices of one host and its memory, one direction.
    """
    positive(hosts=hosts, host_link_bytes_per_s=host_link_bytes_per_s)
    return state.bytes / hosts / host_link_bytes_per_s
