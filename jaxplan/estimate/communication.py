"""What has to move between devices under a plan: read off the table by one rule.

A mesh axis shards one dim in the stored operand and possibly another in the operation. Where they differ, the operand
is gathered over the axis (all-gather), or moved (all-to-all) if the operation's dim is in the operand as well. Where
the operation's dim is contracted, the results are partial sums: they are reduced (all-reduce), or reduced and scattered
if the result owns the axis. Rules of this form are those of GSPMD (Xu et al. 2021, arXiv:2105.04663, section 3.5).

Bytes follow `machine.collectives`: all-gather counts the gathered result, reduce-scatter its input, all-reduce the
tensor, all-to-all the local part.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from jaxplan.estimate.terms import Terms
from jaxplan.estimate.view import Executed, Owners, View
from jaxplan.workload.table import DimIds, Phase, Read


@dataclass(frozen=True)
class Traffic:
    """One kind of collective over one set of mesh axes: bytes and executions per step, on each device.

    `prefetchable` says that it moves state (weights to compute, gradients to storage), which no matmul of the same
    layer has to wait for; otherwise it moves activations and the next matmul waits.
    """

    kind: str
    axes: tuple[str, ...]
    phase: Phase
    prefetchable: bool
    nbytes: Terms
    executions: Terms


def traffic(view: View) -> tuple[Traffic, ...]:
    """All collectives of one step, by kind, axes, phase and whether they can be prefetched."""
    found: dict[tuple[str, tuple[str, ...], Phase, bool], tuple[Terms, Terms]] = defaultdict(
        lambda: (Terms(), Terms())
    )
    for kind, axes, phase, dims, nbytes, held, times in [*_reads(view), *_writes(view)]:
        prefetchable = not view.has_batch(dims)
        key = (kind, tuple(sorted(axes, key=("data", "fsdp", "tensor").index)), phase, prefetchable)
        old_bytes, old_count = found[key]
        count = Terms.one(times, **({} if phase == "update" else {"microbatches": 1}))
        found[key] = (old_bytes + view.per_step(nbytes * times, dims, held, phase), old_count + count)
    return tuple(Traffic(*key, *costs) for key, costs in found.items())


def _reads(view: View):
    """Operands that are stored one way and read another: one movement serves every reader in the same loop."""
    groups: dict[tuple[int, Phase, tuple[str, ...]], list[tuple[Executed, Read]]] = defaultdict(list)
    for run in view.executed:
        for read in run.operation.reads:
            groups[read.value, run.phase, run.operation.scope].append((run, read))
    for (value, phase, _), readers in groups.items():
        stored = view.table.values[value]
        owners = view.owners(stored.dims)
        gathered, moved = set(), set()
        for run, read in readers:
            needed = view.operation_owners(run.operation)
            for axis, how in operand_moves(owners, needed, stored.dims, read.dims).items():
                (gathered if how == "all-gather" else moved).add(axis)
        times = max(run.operation.times for run, _ in readers)
        nbytes = view.table.nbytes(value)
        if gathered:
            yield "all-gather", gathered, phase, stored.dims, nbytes, set(owners) - gathered, times
        if moved - gathered:
            yield "all-to-all", moved - gathered, phase, stored.dims, nbytes, set(owners), times


def operand_moves(owners: Owners, needed: Owners, stored: DimIds, read: DimIds) -> dict[str, str]:
    """How each axis that shards a stored operand has to move for an operation that shards by `needed`."""
    moves = {}
    for axis, dim in owners.items():
        if needed.get(axis) == dim and dim in read:
            continue
        target = needed.get(axis)
        moves[axis] = "all-to-all" if target in stored and target in read else "all-gather"
    return moves


def _writes(view: View):
    """Results: partial sums that are reduced, and results that end up elsewhere than they were made."""
    for run in view.executed:
        op = run.operation
        needed = view.operation_owners(op)
        for value in op.writes[:1]:
            stored = view.table.values[value]
            owners = view.owners(stored.dims)
            summed = {axis for axis, dim in needed.items() if dim in op.contracted}
            scattered = {axis for axis in summed if axis in owners}
            moved = {a for a, dim in needed.items() if a not in summed and a in owners and owners[a] != dim}
            nbytes = view.table.nbytes(value)
            if summed - scattered:
                yield "all-reduce", summed - scattered, run.phase, stored.dims, nbytes, set(owners), op.times
            if scattered:
                held = set(owners) - scattered
                yield "reduce-scatter", scattered, run.phase, stored.dims, nbytes, held, op.times
            if moved:
                yield "all-to-all", moved, run.phase, stored.dims, nbytes, set(owners), op.times
