"""Where training stands in its data, in global samples: what stays true when the number of shards changes. No JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxplan.errors import InputError

Order = Literal["global", "shard"]


@dataclass(frozen=True)
class Position:
    """How many samples were trained on, by all shards together.

    Attributes:
        samples: samples before the next one, since the start of training.
        shards: readers that the data is dealt out to.
        order: `global`: sample i goes to shard i mod shards, so that any number of shards reads the same samples in
            the same order. `shard`: each shard reads files of its own, and another number of shards would read
            other samples: some twice, some never.
        seed: of the shuffle.
    """

    samples: int
    shards: int = 1
    order: Order = "global"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 0 or self.shards < 1:
            raise ValueError(f"expected samples >= 0 and shards >= 1, got {self.samples} and {self.shards}")
        if self.order not in ("global", "shard"):
            raise ValueError(f"order must be global or shard, got {self.order!r}")

    def on(self, shards: int, seed: int | None = None) -> Position:
        """The same place for another number of shards.

        Raises:
            InputError: the samples or their order would be others.
        """
        if seed is not None and seed != self.seed:
            raise InputError(
                f"the data is shuffled with seed {seed}, the checkpoint's with {self.seed}",
                f"seed {self.seed}: with another one samples repeat and others are left out",
            )
        if shards != self.shards and self.order == "shard":
            raise InputError(
                f"the data iterator has {shards} shards, the checkpoint's had {self.shards}, each with its own files",
                f"{self.shards} shards, so that no sample is read twice or never",
                'a reader that deals samples out one by one (order="global"), which takes any number of shards',
            )
        return Position(self.samples, shards, self.order, self.seed)

    def local(self, shard: int) -> int:
        """How many samples of its own that shard has read, where samples are dealt out one by one (`global`)."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"shard must be from 0 to {self.shards - 1}, got {shard}")
        return (self.samples - shard + self.shards - 1) // self.shards
