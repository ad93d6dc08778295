"""What attention over `context` and stages exchange, against the sums written out.

The program: one attention of 2 layers, Q (B, S, N, H), K and V (B, S, K, H), and a stream (B, S, D).
"""

import numpy as np
import pytest

from jaxplan.estimate.exchange import exchanges
from jaxplan.estimate.terms import Pipeline, rows
from jaxplan.estimate.view import View
from jaxplan.plan.sharding import sizes_in_order, standard_rules
from jaxplan.workload.cut import Cut
from jaxplan.workload.table import Dim, Operation, Read, Table, Value

B, S, K, G, H, D, L = 8, 64, 2, 2, 16, 32, 2
BATCH, SEQ, KV, GROUP, WIDTH, EMBED, KEYS = range(7)
QUERY, KEY = (BATCH, SEQ, KV, GROUP, WIDTH), (BATCH, SEQ, KV, WIDTH)
Q_BYTES, KV_BYTES, STREAM_BYTES = 2 * B * S * K * G * H * L, 2 * 2 * B * S * K * H * L, 2 * B * S * D


def shape(*dims):
    return tuple((d,) for d in dims)


def table():
    q, k, v, out, dq, dk, dv, stream = range(8)
    whole = (BATCH, KV, GROUP, SEQ, KEYS, WIDTH)
    as_key = shape(BATCH, KEYS, KV, WIDTH)
    reads = (Read(q, shape(*QUERY)), Read(k, as_key), Read(v, as_key))
    layers, rest = {"times": L, "scope": ("layers",)}, Read(stream, shape(BATCH, SEQ, EMBED))
    names = ("batch", "seq", "kv_heads", "group", "head_dim", "embed", "seq'")
    dims = tuple(Dim(name, size) for name, size in zip(names, (B, S, K, G, H, D, S), strict=True))
    values = [Value(shape(*d), 2) for d in (QUERY, KEY, KEY, QUERY, QUERY, KEY, KEY, (BATCH, SEQ, EMBED))]
    return Table(
        dims=dims,
        values=tuple(values),
        operations=(
            Operation("attention", "attention", "forward", 1.0, reads, (out,), whole, (KEYS,), **layers),
            Operation("attention", "attention", "backward", 1.0, reads, (dq, dk, dv), whole, (), **layers),
            Operation("add", "elementwise", "forward", 0.0, (rest,), (), (), **layers),
        ),
        residuals=(),
        parameters=(),
        optimizer=(),
        batch=(),
        uncovered={},
    )


def found(method="ring", pipeline=None, micro=1, **sizes):
    """{(kind, axis, phase): (bytes, executions)} of one step."""
    view = View(table(), standard_rules(True, False), Cut((), ()))
    variables = rows(sizes_in_order(sizes), micro, 1, pipeline, method == "ulysses")
    out = {}
    for (kind, axes, phase, _), nbytes, count in exchanges(view):
        if all(sizes.get(axis, 1) > 1 for axis in axes):
            figures = (float(nbytes.at(variables)[0]), float(count.at(variables)[0]))
            out |= {(kind, axes[0], phase): figures} if any(figures) else {}
    return out


def test_a_ring_passes_keys_on_and_their_gradients_home():
    n, local = 4, KV_BYTES / 4
    moved = found(context=n)
    assert moved["collective-permute", "context", "forward"] == pytest.approx(((n - 1) * local, 2 * (n - 1) * L))
    # keys and values in two bytes, their gradients in four
    assert moved["collective-permute", "context", "backward"] == pytest.approx((3 * (n - 1) * local, 4 * (n - 1) * L))


def test_other_axes_divide_what_a_ring_moves():
    alone = found(context=4)["collective-permute", "context", "forward"][0]
    assert found(context=4, tensor=2, data=2)["collective-permute", "context", "forward"][0] == pytest.approx(alone / 4)


def test_ulysses_exchanges_heads_for_sequence():
    moved = found("ulysses", context=2)
    assert moved["all-to-all", "context", "forward"] == pytest.approx((2 * Q_BYTES / 2 + KV_BYTES / 2, 4 * L))
    assert moved["all-to-all", "context", "backward"] == pytest.approx((4 * Q_BYTES / 2 + 2 * KV_BYTES / 2, 8 * L))


def test_a_group_adds_up_the_gradients_of_its_keys():
    moved = found(tensor=2, group=2)
    assert moved == {("all-reduce", "group", "backward"): pytest.approx((KV_BYTES / 2, 2 * L))}


def test_every_tick_sends_a_microbatch_to_the_next_stage():
    micro, ticks = 4, 4 + 1
    pipeline = Pipeline(np.array([ticks / micro]), np.array([ticks]), np.array([ticks]))
    moved = found(pipeline=pipeline, micro=micro, stage=2)
    for phase in ("forward", "backward"):
        assert moved["collective-permute", "stage", phase] == pytest.approx((ticks * STREAM_BYTES / micro, ticks))
        assert moved["all-gather", "stage", phase] == pytest.approx((STREAM_BYTES, 1))
        assert moved["reduce-scatter", "stage", phase] == pytest.approx((STREAM_BYTES, 1))


def test_nothing_moves_on_one_device():
    assert found() == {}
