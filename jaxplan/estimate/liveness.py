"""What is alive inside a program's loops: the working set at each heavy operation, in term form.

Only materialized values count (`compute.materialized`); a fused chain keeps alive the arrays that it reads until the
array that it makes is there. An operation's gathered operands live while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.estimate.communication import operand_moves
from jaxplan.estimate.compute import HEAVY, materialized
from jaxplan.estimate.terms import Terms, total
from jaxplan.estimate.view import Executed, View


@dataclass(frozen=True)
class Point:
    """A moment of the step: the operation that runs, and the bytes of everything transient that is alive."""

    name: str
    alive: Terms


def working_sets(view: View, runs: Sequence[Executed], resident: frozenset[int]) -> tuple[Point, ...]:
    """The working set at each heavy operation of one straight piece of program.

    Args:
        runs: the operations in the order in which they run.
        resident: values that are accounted for elsewhere (parameters, saved residuals, stacked results).
    """
    kept = materialized(view.table)
    sources = _sources(runs, kept)
    heavy = [run for run in runs if run.operation.kind in HEAVY]
    last_use: dict[int, int] = {}
    for i, run in enumerate(heavy):
        for value in _reads(run, sources):
            last_use[value] = i
    born: dict[int, int] = {}
    for i, run in enumerate(heavy):
        for value in run.operation.writes:
            born.setdefault(value, i)
    # a materialized value that a fused chain makes is born where it is first read
    for i, run in enumerate(heavy):
        for read in run.operation.reads:
            born.setdefault(read.value, i)
    points = []
    for i, run in enumerate(heavy):
        alive = [
            view.live(value)
            for value, end in last_use.items()
            if born.get(value, 0) <= i <= end and value not in resident
        ]
        points.append(Point(run.operation.source or run.operation.primitive, total([*alive, *_transient(view, run)])))
    return tuple(points)


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


def _transient(view: View, run: Executed) -> list[Terms]:
    """Gathered copies of an operation's operands, and its result before it is scattered."""
    needed, extra = view.operation_owners(run.operation), []
    for read in run.operation.reads:
        stored = view.table.values[read.value]
        moves = operand_moves(view.owners(stored.dims), needed, stored.dims, read.dims)
        if moves:
            extra.append(view.live(read.value, without=moves))
    for value in run.operation.writes:
        stored = view.table.values[value]
        owners = view.owners(stored.dims)
        scattered = {a for a, dim in needed.items() if dim in run.operation.contracted and a in owners}
        extra.append(view.live(value, without=scattered))
    return extra
