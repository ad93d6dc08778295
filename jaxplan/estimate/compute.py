"""What every device computes and reads from its memory: the roofline's two sides, in term form.

Roofline: Williams, Waterman, Patterson 2009 (doi:10.1145/1498765.1498785): an operation takes the longer of its FLOPs
over the peak rate and its bytes over the memory's rate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from jaxplan.estimate.terms import Terms
from jaxplan.estimate.view import Executed, View, once
from jaxplan.workload.cut import LAYERS

HEAVY = ("matmul", "attention", "lookup")      # kinds whose operands and results are arrays in memory
STACK_PASSES = 2        # a copy reads and writes


@dataclass(frozen=True)
class Work:
    """Operations of one kind, priced together: FLOPs and memory bytes of one step on one device.

    Attributes:
        of_experts: each expert does its own part: the busiest sets the pace.
    """

    kind: str
    recomputed: bool
    in_layers: bool
    of_experts: bool
    flops: Terms
    nbytes: Terms


@once
def materialized(view: View) -> frozenset[int]:
    """Values that become arrays in memory: inputs, what is saved, operands and results of the heavy operations.

    Elementwise chains and reductions are fused by XLA into one kernel that reads and writes only these (Snider and
    Liang 2023, arXiv:2301.13062).
    """
    kept = {i for i, value in enumerate(view.table.values) if value.kind != "intermediate"}
    for op in view.table.operations:
        if op.kind in HEAVY:
            kept.update(read.value for read in op.reads)
            kept.update(op.writes)
    return frozenset(kept | set(view.cut.saved))


def work(view: View) -> tuple[Work, ...]:
    """The step's work: one entry a heavy operation (merged where equal), one for all fused memory-bound passes."""
    kept = materialized(view)
    passes: set[tuple[int, str, bool]] = set()
    merged: dict[tuple, tuple[Terms, Terms]] = defaultdict(lambda: (Terms(), Terms()))
    for run in view.executed:
        op = run.operation
        inside = LAYERS in op.scope
        flops = view.per_step(op.flops * op.times, op.dims, set(view.operation_owners(op)), run.phase, inside)
        heavy = op.kind in HEAVY
        nbytes = _bytes(view, run, kept, None if heavy else passes)
        if view.repeats_loss(run):
            flops, nbytes = flops.times(chunked=1), nbytes.times(chunked=1)
        of_experts = any(view.names[d] == "expert" for d in op.dims)
        about = (op.kind if heavy else "memory-bound", run.recomputed, inside, of_experts)
        key = (*about, *sorted(flops.coefficients)) if heavy else about
        old_flops, old_bytes = merged[key]
        merged[key] = (old_flops + flops, old_bytes + nbytes)
    old_flops, old_bytes = merged["memory-bound", False, True, False]
    merged["memory-bound", False, True, False] = old_flops, old_bytes + _stacked_bytes(view)
    return tuple(Work(key[0], key[1], key[2], key[3], *costs) for key, costs in merged.items())


def _stacked_bytes(view: View) -> Terms:
    """Memory bytes of what a loop over layers keeps: each layer's is copied into a stack, and out of it later.

    XLA updates the stack in place by a fusion of its own, as it slices it (read from the HLO of libtpu 0.0.42.1 and of
    the CUDA plugin 0.10.2: `dynamic-update-slice` and `dynamic-slice` fusions of every kept value).
    """
    total = Terms()
    for value in view.cut.on_device:
        if (copies := view.cut.copies(view.table, value)) > 1:
            dims = view.table.values[value].dims
            amount, owners = STACK_PASSES * view.table.nbytes(value) * copies, set(view.owners(dims, True))
            for phase in ("forward", "backward"):
                total = total + view.per_step(amount, dims, owners, phase, True)
    return total


def _bytes(view: View, run: Executed, kept: frozenset[int], passes: set | None) -> Terms:
    """Memory bytes of one operation: its materialized operands as it reads them (gathered), and its results.

    Fused operations share `passes`: what one of them has read in a phase, the others find in registers.
    """
    op, nbytes = run.operation, Terms()
    needed, inside = view.operation_owners(op), LAYERS in op.scope
    for read in op.reads:
        key = (read.value, run.phase, run.recomputed)
        if read.value not in kept or (passes is not None and key in passes):
            continue
        if passes is not None:
            passes.add(key)
        dims = view.table.values[read.value].dims
        there = {view.places[dim] for dim in dims}
        owners = {axis for axis, dim in needed.items() if view.places[dim] in there}
        nbytes = nbytes + view.per_step(view.table.nbytes(read.value) * op.times, dims, owners, run.phase, inside)
    for value in op.writes:
        if value in kept:
            dims = view.table.values[value].dims
            owners = set(view.owners(dims, inside))
            nbytes = nbytes + view.per_step(view.table.nbytes(value) * op.times, dims, owners, run.phase, inside)
    return nbytes
