"""What has to move between devices under a plan: read off the table by one rule.

A mesh axis shards one dim in the stored operand and possibly another in the operation. Where they differ, the operand
is gathered over the axis (all-gather), or moved (all-to-all) if the operation's dim is in the operand as well. Where
the operation's dim is contracted, the results are partial sums: they are reduced (all-reduce), or reduced and scattered
if the result owns the axis. Rules of this form are those of GSPMD (Xu et al. 2021, arXiv:2105.04663, section 3.5).

Bytes follow `machine.collectives`: all-gather counts the gathered result, reduce-scatter its input, all-reduce the
tensor, all-to-all the local part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxplan.estimate.exchange import exchanges
from jaxplan.estimate.terms import Terms, unless
from jaxplan.estimate.view import Executed, Owners, View, once
from jaxplan.plan.sharding import AXES
from jaxplan.workload.cut import LAYERS
from jaxplan.workload.table import DimIds, Phase, Read

REPLICAS = frozenset({"data"})
ADDED_UP_BYTES = 4              # of one element of gradients that microbatches add up
SUMS = ("add", "add_any")       # through which partial sums pass unreduced


@dataclass(frozen=True)
class Traffic:
    """One kind of collective over one set of mesh axes: bytes and executions per step, on each device.

    `prefetchable` says that it moves state (weights to compute, gradients to storage), which no matmul of the same
    layer has to wait for; otherwise it moves activations and the next matmul waits.
    """

    kind: str
    axes: tuple[str, ...]
    prefetchable: bool
    nbytes: Terms
    executions: Terms


@dataclass(frozen=True)
class _Move:
    """One collective of the program: its axes, the tensor's dims and bytes, the axes that divide it, how often."""

    kind: str
    axes: frozenset[str]
    phase: Phase
    dims: DimIds
    nbytes: float
    held: frozenset[str]
    times: int
    scope: tuple[str, ...]
    #: Of gradients that are whole on every replica: `apart` where microbatches are not accumulated, `added up` (in
    #: float32, all contributions to a parameter together) where they are.
    gradients: Literal["", "apart", "added up"] = ""


def traffic(view: View) -> tuple[Traffic, ...]:
    """All collectives of one step, by kind, axes and whether they can be prefetched."""
    found: dict[tuple[str, tuple[str, ...], bool], tuple[Terms, Terms]] = defaultdict(lambda: (Terms(), Terms()))

    def add(key: tuple[str, tuple[str, ...], bool], nbytes: Terms, count: Terms) -> None:
        old_bytes, old_count = found[key]
        found[key] = (old_bytes + nbytes, old_count + count)

    for move in [*_reads(view), *_writes(view), *_added_up(view), *_updates(view)]:
        axes = tuple(axis for axis in AXES if axis in move.axes)
        add((move.kind, axes, not view.has_batch(move.dims)), *_per_step(view, move))
    for (kind, axes, _, prefetchable), nbytes, count in exchanges(view):
        add((kind, axes, prefetchable), nbytes, count)
    return tuple(Traffic(*key, *costs) for key, costs in found.items())


def _per_step(view: View, move: _Move) -> tuple[Terms, Terms]:
    """Bytes and executions of a collective in one step.

    In the loss's loop over chunks a weight moves a chunk at a time; without the loop (a single chunk) what backward
    gathers is what forward has gathered. A stage gathers its weights once a step, before the first microbatch comes.
    """
    inside = LAYERS in move.scope

    def of(phase: Phase) -> tuple[Terms, Terms]:
        nbytes = view.per_step(move.nbytes * move.times, move.dims, move.held, phase, inside)
        return nbytes, view.executions(move.times, move.dims, phase, inside)

    if move.phase == "update":
        once = of("update")
        return once if not move.gradients else (once[0].times(accumulating=1), once[1].times(accumulating=1))
    nbytes, count = of(move.phase)
    if move.gradients:
        # a stage adds them up, too
        wider = ADDED_UP_BYTES * view.table.elements(move.dims) / move.nbytes - 1
        nbytes = nbytes + nbytes.times(pipelining=1) * wider
        nbytes, count = unless("accumulating", nbytes), unless("accumulating", count)
    weight = not view.has_batch(move.dims)
    again = move.kind == "all-gather" and move.phase == "backward"
    if weight and inside and again:
        return unless("pipelining", nbytes), unless("pipelining", count)
    if "chunk" not in move.scope:
        return nbytes, count
    if weight:
        count = count.times(loss_chunks=1)
    return (nbytes.times(chunked=1), count.times(chunked=1)) if again else (nbytes, count)


def _reads(view: View) -> Iterator[_Move]:
    """Operands that are stored one way and read another: one movement serves every reader in the same loop."""
    groups: dict[tuple[int, Phase, tuple[str, ...], bool], list[tuple[Executed, Read]]] = defaultdict(list)
    for run in view.executed:
        for read in run.operation.reads:
            groups[read.value, run.phase, run.operation.scope, run.again].append((run, read))
    for (value, phase, scope, _), readers in groups.items():
        dims, owners = view.table.values[value].dims, view.stored(value, LAYERS in scope)
        gathered, moved = set(), set()
        for run, read in readers:
            for axis, how in moves_of(view, run, read).items():
                (gathered if how == "all-gather" else moved).add(axis)
        about = (phase, dims, view.table.nbytes(value))
        times = max(run.operation.times for run, _ in readers)
        if gathered:
            yield _Move("all-gather", frozenset(gathered), *about, frozenset(set(owners) - gathered), times, scope)
        if moved - gathered:
            yield _Move("all-to-all", frozenset(moved - gathered), *about, frozenset(owners), times, scope)


def _added_up(view: View) -> Iterator[_Move]:
    """Gradients that are whole on every replica, added up over microbatches: reduced over `data` once a step.

    Scattered where the optimizer's state is, if that lies over `data` (ZeRO-1).
    """
    for leaf in view.table.parameters if view.apart else ():
        owners = view.gradient_owners(leaf.dims, inside=False)
        names = [view.names[d] for d in leaf.dims]
        for axis in REPLICAS - set(owners):
            scattered = axis in view.rules.storage_of_optimizer.owners(names, (axis,))
            kind = "reduce-scatter" if scattered else "all-reduce"
            nbytes = view.table.elements(leaf.dims) * ADDED_UP_BYTES
            yield _Move(kind, frozenset({axis}), "update", leaf.dims, nbytes, frozenset(owners), 1, (), "added up")


def _updates(view: View) -> Iterator[_Move]:
    """ZeRO-1: the update is computed where the optimizer's state lies, and gathered to where the parameters lie."""
    table, names = view.table, view.names
    for leaf in table.parameters:
        leaf_names = [names[d] for d in leaf.dims]
        stored = frozenset(view.rules.storage.owners(leaf_names, AXES))
        computed = frozenset(view.rules.storage_of_optimizer.owners(leaf_names, AXES))
        if computed - stored:
            nbytes = table.elements(leaf.dims) * leaf.itemsize
            yield _Move("all-gather", computed - stored, "update", leaf.dims, nbytes, stored, 1, ())


def moves_of(view: View, run: Executed, read: Read) -> dict[str, str]:
    """How each axis that shards an operand has to move for the operation that reads it."""
    return view.laid_out((id(run.operation), id(read)), lambda: _moves_of(view, run, read))


def _moves_of(view: View, run: Executed, read: Read) -> dict[str, str]:
    dims = view.table.values[read.value].dims
    stored, needed = view.stored(read.value, LAYERS in run.operation.scope), view.operation_owners(run.operation)
    at = view.places
    moves = operand_moves(
        {axis: at[dim] for axis, dim in stored.items()},
        {axis: at[dim] for axis, dim in needed.items()},
        tuple(at[dim] for dim in dims),
        tuple(at[dim] for dim in read.dims),
    )
    if run.operation.kind == "attention":
        moves.pop("context", None)      # its kernel has its own way to see all keys: `exchange`
    return moves


def operand_moves(owners: Owners, needed: Owners, stored: DimIds, read: DimIds) -> dict[str, str]:
    """How each axis that shards a stored operand has to move for an operation that shards by `needed`."""
    moves = {}
    for axis, dim in owners.items():
        if needed.get(axis) == dim and dim in read:
            continue
        target = needed.get(axis)
        moves[axis] = "all-to-all" if target in stored and target in read else "all-gather"
    return moves


def _writes(view: View) -> Iterator[_Move]:
    """Results: partial sums that are reduced, and results that end up elsewhere than they were made."""
    for run in view.executed:
        if run.operation.writes and run.operation.primitive not in SUMS:
            yield from _moved_results(view, run, summed(view, run))
    for (value, _), (axes, run) in partial_sums(view)[0].items():
        yield from _reductions(view, value, axes, run)


def summed(view: View, run: Executed) -> frozenset[str]:
    """The axes over which an operation's results are partial sums."""
    op = run.operation
    return frozenset(axis for axis, dim in view.operation_owners(op).items() if dim in op.contracted)


Partial = dict[tuple[int, Phase], tuple[frozenset[str], Executed]]


@once
def partial_sums(view: View) -> tuple[Partial, dict[int, frozenset[str]]]:
    """Partial sums that are reduced, and those that are first added to others (with the axes they are partial over).

    Partial sums that are only added to others over the same axes are added first and reduced once: the gradients of one
    activation that several weights read.
    """
    readers = Counter((read.value, run.phase) for run in view.executed for read in run.operation.reads)
    partial: Partial = {}
    added: dict[int, frozenset[str]] = {}
    for run in view.executed:
        op, phase = run.operation, run.phase
        if not op.writes:
            continue
        result = op.writes[0]
        operands: list[tuple[int, Phase]] = [(read.value, phase) for read in op.reads]
        if op.primitive in SUMS and all(o in partial and readers[o] == 1 for o in operands):
            axes = {partial[operand][0] for operand in operands}
            if len(axes) == 1:
                for operand in operands:
                    added[operand[0]] = partial.pop(operand)[0]
                partial[result, phase] = axes.pop(), run
            continue
        if over := summed(view, run):
            partial[result, phase] = over, run
    return partial, added


def _moved_results(view: View, run: Executed, over: frozenset[str]) -> Iterator[_Move]:
    """A result whose owner is another dim than the operation's."""
    op = run.operation
    dims = view.table.values[op.writes[0]].dims
    owners = view.owners(dims, LAYERS in op.scope)
    needed, at = view.operation_owners(op), view.places
    moved = frozenset(a for a, d in needed.items() if a not in over and a in owners and at[owners[a]] != at[d])
    if moved:
        nbytes = view.table.nbytes(op.writes[0])
        yield _Move("all-to-all", moved, run.phase, dims, nbytes, frozenset(owners), op.times, op.scope)


def _reductions(view: View, value: int, over: frozenset[str], run: Executed) -> Iterator[_Move]:
    """The reduction of a partial sum: scattered over the axes that the result owns, whole over the others.

    Gradients that are whole on every replica and that microbatches add up first are `_added_up`'s.
    """
    op, dims = run.operation, view.table.values[value].dims
    inside, is_gradient = LAYERS in op.scope, run.phase == "backward" and not view.has_batch(dims)
    owners = frozenset(view.gradient_owners(dims, inside) if is_gradient else view.owners(dims, inside))
    about = (run.phase, dims, view.table.nbytes(value))
    once = (over - owners) & REPLICAS if is_gradient and view.apart else frozenset()
    if once:
        yield _Move("all-reduce", once, *about, owners, op.times, op.scope, "apart")
    if over - owners - once:
        yield _Move("all-reduce", over - owners - once, *about, owners, op.times, op.scope)
    if over & owners:
        yield _Move("reduce-scatter", over & owners, *about, owners - over, op.times, op.scope)
