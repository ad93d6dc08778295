"""What is alive inside a program's loops: the working set at each heavy operation, in term form.

Only materialized values count (`compute.materialized`); a fused chain keeps alive the arrays that it reads until the
array that it makes is there. An operation's gathered operands live while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxplan.estimate.communication import moves_of, partial_sums, summed
from jaxplan.estimate.compute import HEAVY, materialized
from jaxplan.estimate.scheduler import Scheduler
from jaxplan.estimate.terms import Terms, total, unless
from jaxplan.estimate.view import Executed, View
from jaxplan.workload.cut import LAYERS

Part = tuple[str, Terms]
UNSCATTERED = "before it is scattered"


@dataclass(frozen=True)
class Point:
    """A moment of the step: the operation that runs, and the bytes of everything transient that is alive, by value."""

    name: str
    parts: tuple[Part, ...] = ()

    @cached_property
    def alive(self) -> Terms:
        return total([terms for _, terms in self.parts])


def working_sets(
    view: View, runs: Sequence[Executed], resident: frozenset[int], scheduler: Scheduler
) -> tuple[Point, ...]:
    """The working set at each heavy operation of one straight piece of program.

    While an operation runs, the weights that the next one needs are already being gathered.

    Args:
        runs: the operations in the order in which they run.
        resident: values that are accounted for elsewhere (parameters, saved residuals, stacked results).
    """
    sources = _sources(runs, materialized(view))
    heavy = [run for run in runs if run.operation.kind in HEAVY]
    first, last = _lifetimes(heavy, sources)
    weights = [_gathered(view, run, batch=False) for run in heavy]
    added = partial_sums(view)[1]
    activations = _spans([_gathered(view, run, batch=True) for run in heavy])
    points: list[Point] = []
    held: list[Part] = []
    for i, run in enumerate(heavy):
        alive = [
            (_describe(view, value), view.live(value, without=added.get(value, ())))
            for value, end in last.items()
            if first[value] <= i <= end and value not in resident
        ]
        coming = next((parts for parts in weights[i + 1 :] if parts), [])
        results = _results(view, run, last)
        whole = [part for begin, end, part in activations if begin <= i <= end]
        points.append(Point(_name(run), (*alive, *whole, *weights[i], *coming, *results, *held)))
        if scheduler.holds_gradients:
            held += [part for part in results if part[0].endswith(UNSCATTERED)]
    return tuple(points)


def _lifetimes(
    heavy: Sequence[Executed], sources: dict[int, frozenset[int]]
) -> tuple[dict[int, int], dict[int, int]]:
    """First and last heavy operation at which each materialized value is there.

    What a heavy operation writes is there from then on; what a fused chain makes, from where it is first read.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, run in enumerate(heavy):
        for value in _reads(run, sources):
            last[value] = i
        for value in (*run.operation.writes, *(read.value for read in run.operation.reads)):
            first.setdefault(value, i)
    for value in last:
        first.setdefault(value, 0)
    return first, last


def _spans(parts: Sequence[list[Part]]) -> list[tuple[int, int, Part]]:
    """Each different part with the first and the last operation that needs it: what is gathered once is kept."""
    spans: dict[str, tuple[int, int, Part]] = {}
    for i, found in enumerate(parts):
        for part in found:
            begin = spans[part[0]][0] if part[0] in spans else i
            spans[part[0]] = begin, i, part
    return list(spans.values())


def _name(run: Executed) -> str:
    return f"{run.operation.primitive} {run.operation.source}".strip()


def _describe(view: View, value: int, how: str = "") -> str:
    stored = view.table.values[value]
    dims = ",".join(dict.fromkeys(view.names[d] for d in stored.dims))
    return f"{stored.tag or stored.path or value} [{dims}] {stored.itemsize} bytes {how}".strip()


def _sources(runs: Sequence[Executed], kept: frozenset[int]) -> dict[int, frozenset[int]]:
    """For each value that fused operations make: the materialized values it is computed from."""
    sources: dict[int, frozenset[int]] = {}
    for run in runs:
        if run.operation.kind in HEAVY:
            continue
        found: set[int] = set()
        for read in run.operation.reads:
            found |= {read.value} if read.value in kept else sources.get(read.value, frozenset())
        for value in run.operation.writes:
            sources[value] = frozenset(found)
    return sources


def _reads(run: Executed, sources: dict[int, frozenset[int]]) -> set[int]:
    """Materialized values that an operation needs: its operands, and what fused operands are computed from."""
    needed: set[int] = set()
    for read in run.operation.reads:
        needed.add(read.value)
        needed |= sources.get(read.value, frozenset())
    return needed


def _gathered(view: View, run: Executed, batch: bool) -> list[Part]:
    """Copies of operands, gathered or moved for an operation: of activations (`batch`) or of weights."""
    parts = []
    for read in run.operation.reads:
        moves = moves_of(view, run, read)
        if moves and view.has_batch(view.table.values[read.value].dims) == batch:
            whole = view.live(read.value, without=[axis for axis, how in moves.items() if how == "all-gather"])
            whole = _in_chunks(view, run, read.value, whole)
            if not batch and LAYERS in run.operation.scope:
                whole = unless("pipelining", whole)     # a stage has gathered its weights before: `memory`
            parts.append((_describe(view, read.value, "gathered"), whole))
    return parts


def _results(view: View, run: Executed, last: dict[int, int]) -> list[Part]:
    """An operation's result before it is scattered, or one that nobody here reads."""
    parts = []
    for value in run.operation.writes:
        inside = LAYERS in run.operation.scope
        scattered = summed(view, run) & set(view.owners(view.table.values[value].dims, inside))
        if scattered or value not in last:
            how = UNSCATTERED if scattered else ""
            whole = _in_chunks(view, run, value, view.live(value, without=scattered))
            parts.append((_describe(view, value, how), whole))
    return parts


def _in_chunks(view: View, run: Executed, value: int, whole: Terms) -> Terms:
    """Inside a loop over chunks of the vocabulary, a weight exists one chunk at a time."""
    chunked = "chunk" in run.operation.scope and not view.has_batch(view.table.values[value].dims)
    return whole.times(loss_chunks=-1) if chunked else whole
