"""Owners, collectives and memory of a table of one matmul, worked out by hand.

The program: y[batch, mlp] = x[batch, embed] @ w[embed, mlp], its gradient dw and dx, one layer of 4.
"""

import pytest

from jaxplan.estimate.communication import operand_moves, traffic
from jaxplan.estimate.compute import work
from jaxplan.estimate.liveness import working_sets
from jaxplan.estimate.scheduler import SCHEDULERS
from jaxplan.estimate.terms import rows
from jaxplan.estimate.view import View
from jaxplan.plan.sharding import AXES, sizes_in_order, standard_rules
from jaxplan.workload.cut import cut
from jaxplan.workload.table import Dim, Leaf, Operation, Read, Table, Value

B, D, F, L = 64, 32, 128, 4
BATCH, EMBED, MLP, LAYERS = range(4)
ALL, FLOPS = (BATCH, EMBED, MLP), 2.0 * B * D * F


def shape(*dims):
    return tuple((d,) for d in dims)


def table():
    x, w, y, dy, dx, dw = range(6)
    layers = {"times": L, "scope": ("layers",)}
    stream, weight, cotangent = Read(x, shape(BATCH, EMBED)), Read(w, shape(EMBED, MLP)), Read(dy, shape(BATCH, MLP))
    return Table(
        dims=(Dim("batch", B), Dim("embed", D), Dim("mlp", F), Dim("layers", L)),
        values=(
            Value(shape(BATCH, EMBED), 2, copies=L),
            Value(shape(EMBED, MLP), 2, "parameter", path="w"),
            Value(shape(BATCH, MLP), 2),
            Value(shape(BATCH, MLP), 2),
            Value(shape(BATCH, EMBED), 2),
            Value(shape(EMBED, MLP), 2),
        ),
        operations=(
            Operation("dot", "matmul", "forward", FLOPS, (stream, weight), (y,), ALL, (EMBED,), **layers),
            Operation("dot", "matmul", "backward", FLOPS, (cotangent, weight), (dx,), ALL, (MLP,), **layers),
            Operation("dot", "matmul", "backward", FLOPS, (stream, cotangent), (dw,), ALL, (BATCH,), **layers),
        ),
        residuals=(x,),
        parameters=(Leaf("w", shape(LAYERS, EMBED, MLP), 4),),
        optimizer=(),
        batch=(),
        uncovered={},
    )


def view(sequence_sharding=True, zero1=False):
    return View(table(), standard_rules(sequence_sharding, zero1), cut(table(), None))


def variables(sizes, micro=1):
    return rows(sizes_in_order(sizes), micro, 1)


def bytes_of(data=1, fsdp=1, tensor=1, micro=1, zero1=False):
    """{(kind, axes): bytes} of one step."""
    by_axis = dict.fromkeys(AXES, 1) | {"data": data, "fsdp": fsdp, "tensor": tensor}
    sizes = variables(by_axis, micro)
    found: dict = {}
    for entry in traffic(view(zero1=zero1)):
        if any(by_axis[axis] > 1 for axis in entry.axes):
            key = entry.kind, tuple(a for a in entry.axes if by_axis[a] > 1)
            found[key] = found.get(key, 0.0) + float(entry.nbytes.at(sizes)[0])
    return {key: nbytes for key, nbytes in found.items() if nbytes}


W_BYTES, X_BYTES = 2 * D * F, 2 * B * D


def test_fsdp_gathers_the_weight_twice_and_scatters_its_gradient():
    assert bytes_of(fsdp=8) == {
        ("all-gather", ("fsdp",)): pytest.approx(2 * L * W_BYTES),       # forward and backward
        ("reduce-scatter", ("fsdp",)): pytest.approx(L * W_BYTES),
    }


def test_fsdp_gathers_again_in_every_microbatch():
    assert bytes_of(fsdp=8, micro=4)["all-gather", ("fsdp",)] == pytest.approx(4 * 2 * L * W_BYTES)


def test_data_parallelism_reduces_the_whole_gradient():
    assert bytes_of(data=8) == {("all-reduce", ("data",)): pytest.approx(L * W_BYTES)}


def test_replicas_reduce_what_microbatches_have_added_up_once_in_float32():
    assert bytes_of(data=8, micro=4) == {("all-reduce", ("data",)): pytest.approx(L * 2 * W_BYTES)}


def test_zero1_scatters_what_microbatches_have_added_up():
    assert bytes_of(data=8, zero1=True)["all-reduce", ("data",)] == pytest.approx(L * W_BYTES)
    found = bytes_of(data=8, micro=4, zero1=True)
    assert found["reduce-scatter", ("data",)] == pytest.approx(L * 2 * W_BYTES)
    assert not found.get(("all-reduce", ("data",)))


def test_tensor_parallelism_reduces_the_input_gradient_of_a_column_parallel_weight():
    assert bytes_of(tensor=4) == {("all-reduce", ("tensor",)): pytest.approx(L * X_BYTES)}


def test_hybrid_scatters_within_and_reduces_across():
    found = bytes_of(data=2, fsdp=4)
    assert found["reduce-scatter", ("fsdp",)] == pytest.approx(L * W_BYTES)
    assert found["all-reduce", ("data",)] == pytest.approx(L * W_BYTES / 4)


def test_zero1_gathers_the_update_once_a_step():
    sizes = variables({"data": 2, "fsdp": 4}, 3)
    update = [t for t in traffic(view(zero1=True)) if (t.kind, t.axes) == ("all-gather", ("data",))]
    assert update[0].nbytes.at(sizes) == pytest.approx([4 * L * D * F / 4])      # float32, fsdp keeps its part
    assert not [t for t in traffic(view()) if (t.kind, t.axes) == ("all-gather", ("data",))]


def test_tensor_and_fsdp_divide_each_others_bytes():
    found = bytes_of(fsdp=4, tensor=2)
    assert found["all-gather", ("fsdp",)] == pytest.approx(2 * L * W_BYTES / 2)
    assert found["all-reduce", ("tensor",)] == pytest.approx(L * X_BYTES / 4)


def test_batch_owns_fsdp_in_an_activation_and_embed_in_a_weight():
    seen = view()
    rows_over, stored_over = ("data", "fsdp", "expert"), ("fsdp", "context", "expert")
    assert seen.owners((BATCH, EMBED), True) == dict.fromkeys(rows_over, BATCH) | {"context": EMBED}
    assert seen.owners((EMBED, MLP), True) == dict.fromkeys(stored_over, EMBED) | {"tensor": MLP, "group": MLP}
    assert seen.owners((BATCH, EMBED), False)["stage"] == BATCH     # outside of the layers: a part of the batch


def test_a_vector_is_not_sharded():
    assert view().owners((LAYERS, EMBED), False) == {"stage": LAYERS}


@pytest.mark.parametrize(
    ("owners", "needed", "moves"),
    [
        ({"fsdp": 1}, {"fsdp": 1}, {}),
        ({"fsdp": 1}, {"fsdp": 0}, {"fsdp": "all-to-all"}),
        ({"fsdp": 1}, {"fsdp": 2}, {"fsdp": "all-gather"}),
        ({"fsdp": 1}, {}, {"fsdp": "all-gather"}),
    ],
)
def test_how_an_operand_moves(owners, needed, moves):
    assert operand_moves(owners, needed, (0, 1), (0, 1)) == moves


def test_a_working_set_holds_operands_results_and_gathered_weights():
    seen = view()
    forward = [run for run in seen.executed if run.phase == "forward"]
    points = working_sets(seen, forward, frozenset({0, 1}), SCHEDULERS["cuda"])
    sizes = variables({"fsdp": 8})
    gathered, result = W_BYTES, 2 * B * F / 8
    assert points[0].alive.at(sizes) == pytest.approx([gathered + result])


@pytest.mark.parametrize("sizes, shards", [({}, 1), ({"data": 2}, 2), ({"data": 2, "fsdp": 4}, 8)])
def test_what_a_loop_keeps_is_copied_into_a_stack_and_out_of_it(sizes, shards):
    """x is kept in every layer: read and written on the way there and on the way back; nothing else is memory-bound."""
    passes = [entry for entry in work(view()) if entry.kind == "memory-bound"]
    assert len(passes) == 1 and passes[0].in_layers and not passes[0].recomputed
    assert passes[0].nbytes.at(variables(sizes))[0] == 4 * L * 2 * B * D / shards
    assert passes[0].flops.at(variables(sizes))[0] == 0
