"""What kernels and pipelines exchange by themselves: keys and values over `context`, activations between stages.

These do not follow from where operands lie (`estimate.communication`), but from how the program is written:
`workload.kernels` and `workload.pipeline`.

Legend: n devices of the axis, q, k, v bytes of a device's own part of query, key and value.

    ring, forward        (n - 1) (k + v), permuted              Liu et al. 2023, arXiv:2310.01889, section 3
    ring, backward       (n - 1) (k + v + dk + dv), dk and dv in float32
    ulysses, forward     2 q + k + v, all-to-all                Jacobs et al. 2023, arXiv:2309.14509, section 3
    ulysses, backward    4 q + 2 (k + v)
    run again            ring (n - 2) (k + v), ulysses q: the rest is the backward pass's, made once
    group, backward      dk + dv, all-reduced: every device of the group has other queries of the same keys
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.estimate.offload import offload
from jaxplan.estimate.terms import Terms, unless
from jaxplan.estimate.view import Executed, View, once
from jaxplan.workload.cut import LAYERS
from jaxplan.workload.table import Phase

Key = tuple[str, tuple[str, ...], Phase, bool]      # kind, axes, phase, prefetchable
Exchange = tuple[Key, Terms, Terms]                 # key, bytes and executions of one step
HOST_COPY = "host-copy"                             # between a device and its host's memory: the kind, over no axes
ACCUMULATED_BYTES = 4                               # of one element of dk and dv on their way round


def exchanges(view: View) -> Iterator[Exchange]:
    """Everything that is exchanged by kernels and stages in one step."""
    for run in view.executed:
        if run.operation.kind == "attention":
            yield from _grouped(view, run)
            for key, nbytes, count in _ring(view, run):
                yield key, unless("ulysses", nbytes), unless("ulysses", count)
            for key, nbytes, count in _ulysses(view, run):
                yield key, nbytes.times(ulysses=1), count.times(ulysses=1)
    yield from _stages(view)
    yield from _host(view)


def _local(view: View, run: Executed, value: int) -> Terms:
    """Bytes of the parts of a value that a device has of its own, over all executions of a step."""
    op, dims = run.operation, view.table.values[value].dims
    inside = LAYERS in op.scope
    owners = set(view.owners(dims, inside))
    return view.per_step(view.table.nbytes(value) * op.times, dims, owners, run.phase, inside)


def _times(view: View, run: Executed, each: Terms) -> Terms:
    """Executions of something that every execution of an operation does `each` times."""
    op = run.operation
    return each.product(view.executions(op.times, op.dims, run.phase, LAYERS in op.scope))


def _keys(view: View, run: Executed) -> tuple[Terms, float]:
    """Bytes of a device's own keys and values, and how many times larger their accumulated gradients are."""
    key, value = (read.value for read in run.operation.reads[1:3])
    return _local(view, run, key) + _local(view, run, value), ACCUMULATED_BYTES / view.table.values[key].itemsize


def _ring(view: View, run: Executed) -> Iterator[Exchange]:
    """What goes round; where the axis has one device (nothing moves there) this says nothing.

    A forward pass that is run again shares its first hop, which stands before the loop, with the backward pass.
    """
    both, wider = _keys(view, run)
    shared = 1.0 if run.recomputed else 0.0
    nbytes = both.times(context=1) + both * -(1 + shared)
    steps = Terms.one(2, context=1) + Terms.one(-2 * (1 + shared))
    if _is_backward(run):
        nbytes, steps = nbytes * (1 + wider), steps * 2.0
    yield ("collective-permute", ("context",), run.phase, True), nbytes, _times(view, run, steps)


def _ulysses(view: View, run: Executed) -> Iterator[Exchange]:
    """What is exchanged; a forward pass that is run again shares query, key and value with the backward pass."""
    both, _ = _keys(view, run)
    query = _local(view, run, run.operation.reads[0].value)
    if _is_backward(run):
        nbytes, count = query * 4.0 + both * 2.0, 8
    elif run.recomputed:
        nbytes, count = query, 1
    else:
        nbytes, count = query * 2.0 + both, 4
    yield ("all-to-all", ("context",), run.phase, False), nbytes, _times(view, run, Terms.one(count))


def _grouped(view: View, run: Executed) -> Iterator[Exchange]:
    """Every device of a group has the same keys, whole; the parts of their gradients are added up."""
    if _is_backward(run):
        both, _ = _keys(view, run)
        yield ("all-reduce", ("group",), run.phase, False), both, _times(view, run, Terms.one(2))


def _is_backward(run: Executed) -> bool:
    return run.phase == "backward" and not run.recomputed


def _stages(view: View) -> Iterator[Exchange]:
    """The residual stream: from stage to stage at every tick, gathered over stages at the start, scattered at the end.

    Every stage starts with all rows of its other axes and ends with its own part: what follows the layers (the loss) is
    divided over stages as well.
    """
    rows, once = pipelined_rows(view), Terms.one(1, pipelining=1)
    for phase in ("forward", "backward"):
        tick = rows.times(pipelined=-1, ticks=1)
        yield ("collective-permute", ("stage",), phase, False), tick, Terms.one(1, ticks=1)
        yield ("all-gather", ("stage",), phase, False), rows, once
        yield ("reduce-scatter", ("stage",), phase, False), rows, once


def _host(view: View) -> Iterator[Exchange]:
    """Residuals to the host's memory and back, beside computation; the optimizer's state, when the update needs it."""
    moved = offload(view)
    yield (HOST_COPY, (), "forward", True), moved.activations, Terms()
    yield (HOST_COPY, (), "backward", True), moved.activations, Terms()
    yield (HOST_COPY, (), "update", False), moved.optimizer * 2.0, Terms()


@once
def pipelined_rows(view: View) -> Terms:
    """Bytes of the residual stream of all microbatches on one device of a stage; none without stages."""
    stream = _stream(view)
    if stream is None:
        return Terms()
    owners = view.owners(view.table.values[stream].dims, True)
    return Terms.one(view.table.nbytes(stream), pipelining=1, **dict.fromkeys(owners, -1))


def _stream(view: View) -> int | None:
    """The residual stream: of the layers' values over batch, seq and embed alone the narrowest."""
    found = [
        value
        for value in sorted(view.inside)
        if view.table.values[value].kind == "intermediate"
        and sorted(view.names[d] for d in view.table.values[value].dims) == ["batch", "embed", "seq"]
    ]
    return min(found, key=view.table.nbytes, default=None)
