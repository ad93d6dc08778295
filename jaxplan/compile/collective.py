"""One collective of a compiled module, as a record, and sums of such records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxplan.machine.placement import Part

ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER = "all-gather", "all-reduce", "reduce-scatter"
PERMUTE = "collective-permute"


@dataclass(frozen=True)
class Collective:
    """One collective of a module, as one device sees it.

    Attributes:
        name: its instruction (the start, where it is asynchronous), in `computation`.
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`,
            `collective-broadcast`, `ragged-all-to-all`.
        nbytes: bytes of one execution, by the convention of its kind.
        axes: mesh axes that it runs along.
        group_size: devices of a group (for a permute: devices along its axes).
        whole_axes: False where groups hold a part of an axis only.
        executions: how often it runs; a lower bound where `bounded` is False.
        place, end: where in the schedule of `computation` it is issued, and where its result is awaited
        (None: at once).
        direction: which way round the ring a permute goes, 1 or -1; 0 for everything else.
        between: computing instructions scheduled between its start and its end.
        between_flops: matmul FLOPs of these instructions.
        op_name: the JAX operation that it comes from.
        reads_as_reduce_scatter: an all-reduce of which each device keeps its slice only: host XLA's way to
        write a
            reduce-scatter.
        target_nbytes: bytes where bfloat16 is native; host XLA widens to float32 what it rounds again on
        arrival.
        emitter: the algorithm that a TPU compiler chose; empty elsewhere.
        part: of a program for several slices, which part of a collective it is (`megascale`): that of a `slice`, or
            that of the `network` between them; else `whole`.
    """

    name: str
    computation: str
    kind: str
    nbytes: int
    axes: tuple[str, ...]
    group_size: int
    whole_axes: bool
    executions: int
    bounded: bool
    place: int
    end: int | None
    direction: int
    between: int
    between_flops: float
    op_name: str
    reads_as_reduce_scatter: bool
    target_nbytes: int
    emitter: str
    part: Part = "whole"

    @property
    def asynchronous(self) -> bool:
        """Whether it is issued and awaited at different places of the schedule."""
        return self.end is not None

    @property
    def target_kind(self) -> str:
        """What the target's compiler makes of it: a sliced all-reduce is a reduce-scatter."""
        return REDUCE_SCATTER if self.reads_as_reduce_scatter else self.kind

    @property
    def moved_bytes(self) -> float:
        """Bytes that each device sends in all executions with a ring, at the target's width."""
        return ring_bytes(self.target_kind, self.target_nbytes, self.group_size) * self.executions


def ring_bytes(kind: str, nbytes: float, size: int) -> float:
    """Bytes that each device sends when `size` devices run a collective of `nbytes` around a ring.

    (size - 1)/size of the bytes; twice that for an all-reduce; the message itself for a permute. It makes
    the forms of one exchange comparable: a gather, and the permutes that a compiler makes of it to overlap
    it with a matmul.
    """
    if kind == PERMUTE:
        return float(nbytes)
    return (2.0 if kind == ALL_REDUCE else 1.0) * nbytes * (size - 1) / size


def by_axes(found: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], float]:
    """Bytes of all executions by (kind, axes), as the target would see them."""
    total: dict[tuple[str, tuple[str, ...]], float] = {}
    for one in found:
        key = (one.target_kind, one.axes)
        total[key] = total.get(key, 0.0) + float(one.target_nbytes) * one.executions
    return total


def moved_by_axes(found: Iterable[Collective]) -> dict[tuple[str, ...], float]:
    """Bytes that each device sends by axes, whatever form the exchange takes."""
    total: dict[tuple[str, ...], float] = {}
    for one in found:
        total[one.axes] = total.get(one.axes, 0.0) + one.moved_bytes
    return total
