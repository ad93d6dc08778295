"""Bytes between a device and its host, worked out by hand for a table of one matmul in 4 layers."""

import pytest

from jaxplan.estimate.offload import Offload, offload
from jaxplan.estimate.terms import Pipeline, Terms, rows
from jaxplan.estimate.view import View
from jaxplan.plan.remat import POLICIES, Policy
from jaxplan.plan.sharding import sizes_in_order, standard_rules
from jaxplan.workload.cut import policy_cut
from jaxplan.workload.table import Dim, Leaf, Operation, Read, Table, Value

B, D, F, L = 64, 32, 128, 4
BATCH, EMBED, MLP, LAYERS = range(4)
X, W, Y = range(3)
Y_BYTES, W_STATE = 2 * B * F, 4 * L * D * F


def shape(*dims: int) -> tuple[tuple[int, ...], ...]:
    return tuple((d,) for d in dims)


def table() -> Table:
    """y = x @ w in each layer, y tagged and read by the backward pass; the optimizer keeps one moment of w."""
    inside = {"times": L, "scope": ("layers",)}
    reads = (Read(X, shape(BATCH, EMBED)), Read(W, shape(EMBED, MLP)))
    return Table(
        dims=(Dim("batch", B), Dim("embed", D), Dim("mlp", F), Dim("layers", L)),
        values=(
            Value(shape(BATCH, EMBED), 2, copies=L),
            Value(shape(EMBED, MLP), 2, "parameter", path="w"),
            Value(shape(BATCH, MLP), 2, copies=L, tag="mlp_up"),
        ),
        operations=(
            Operation("dot", "matmul", "forward", 1.0, reads, (Y,), (BATCH, EMBED, MLP), (EMBED,), **inside),
            Operation("cos", "elementwise", "backward", 0.0, (Read(Y, shape(BATCH, MLP)),), (), (BATCH, MLP), **inside),
        ),
        residuals=(X, Y),
        parameters=(Leaf("w", shape(LAYERS, EMBED, MLP), 4),),
        optimizer=(Leaf("mu", shape(LAYERS, EMBED, MLP), 4),),
        batch=(),
        uncovered={},
    )


def found(policy: Policy) -> Offload:
    return offload(View(table(), standard_rules(True, False), policy_cut(table(), policy)))


def at(cost: Terms, micro: int = 1, offloaded: int = 0, pipeline: Pipeline | None = None, **sizes: int) -> float:
    return float(cost.at(rows(sizes_in_order(sizes), micro, 1, pipeline, offloaded=offloaded))[0])


def test_what_is_offloaded_goes_and_comes_back_once_a_microbatch() -> None:
    cost = found(POLICIES["offload-dots"])
    for micro in (1, 8):
        assert at(cost.activations, micro, data=2, fsdp=2, tensor=4) == pytest.approx(L * Y_BYTES / 16)
        assert at(cost.moved, micro, data=2, fsdp=2, tensor=4) == pytest.approx(2 * L * Y_BYTES / 16)
    # one microbatch at a time is on the host
    assert at(cost.held, 8, data=2, fsdp=2, tensor=4) == pytest.approx(L * Y_BYTES / 16 / 8)


def test_a_blocks_input_is_cut_as_the_stream_is() -> None:
    assert at(found(POLICIES["offload-input"]).activations, 1, data=4) == pytest.approx(L * 2 * B * D / 4)


def test_stages_have_a_share_of_the_layers_and_move_in_the_bubble_too() -> None:
    pipeline = Pipeline(*([[x] for x in (1.25, 10, 3)]))
    cost = found(POLICIES["offload-dots"])
    sizes = {"stage": 2, "data": 2}
    assert at(cost.activations, 8, pipeline=pipeline, **sizes) == pytest.approx(1.25 * L * Y_BYTES / 4)
    assert at(cost.held, 8, pipeline=pipeline, **sizes) == pytest.approx(3 * L * Y_BYTES / 4 / 8)


def test_the_optimizers_state_comes_and_goes_once_a_step() -> None:
    cost = found(POLICIES["full"])
    assert at(cost.moved, 8, offloaded=1, fsdp=4) == pytest.approx(2 * W_STATE / 4)
    assert at(cost.held, 8, offloaded=1, fsdp=4) == pytest.approx(W_STATE / 4)
    assert at(cost.moved, 8, offloaded=0, fsdp=4) == 0


@pytest.mark.parametrize("name", ["none", "dots", "full", "every-2"])
def test_other_policies_move_nothing(name) -> None:
    assert at(found(POLICIES[name]).moved, 4, data=2) == 0
