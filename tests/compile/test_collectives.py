# ruff: noqa: E501  compilers print long lines
import hlo_fixtures as fixtures
import numpy as np
import pytest

from jaxplan.compile.collectives import by_axes, collectives, moved_by_axes, ring_bytes

BF16, F32, S32 = 2, 4, 4


def layer_parameters(model):
    """Elements of one layer's matrices."""
    return model.embed * (model.head_dim * 2 * (model.heads + model.kv_heads) + 3 * model.mlp)


def found(name):
    return by_axes(collectives(fixtures.module(name), fixtures.axes(name)))


@pytest.mark.parametrize("name", ["cpu_fsdp", "h100_fsdp"])
def test_fsdp_moves_what_the_formulas_say(name):
    model = fixtures.model(name)
    layers, unembed = model.layers * layer_parameters(model), model.embed * model.vocab
    tokens, norms = model.batch * model.seq, model.layers * 2 * model.embed
    lookups = 2 * tokens // fixtures.DEVICES * model.embed * BF16  # to and fro between vocabulary rows and batch rows
    assert found(name) == {
        # weights in bfloat16, gathered forward and backward; the unembedding once; the token ids
        ("all-gather", ("fsdp",)): (2 * layers + unembed) * BF16 + tokens * S32,
        ("reduce-scatter", ("fsdp",)): (layers + unembed) * BF16,
        ("all-reduce", ("fsdp",)): norms * BF16 + F32,  # gradients of the scales, and the loss
        ("all-to-all", ("fsdp",)): lookups,
    }


@pytest.mark.parametrize("name", ["cpu_mixed", "cpu_mixed_012", "h100_mixed", "v5e_mixed"])
def test_three_axes_move_what_the_formulas_say(name):
    model, sizes = fixtures.model(name), fixtures.axes(name)
    total = found(name)
    layers = model.layers * layer_parameters(model) / sizes["tensor"]
    unembed = model.embed * model.vocab / sizes["tensor"]
    activation = model.batch * model.seq * model.embed * BF16 / (sizes["data"] * sizes["fsdp"])
    gathered = total[("all-gather", ("fsdp",))]
    assert gathered == (2 * layers + unembed) * BF16
    reduced = total[("reduce-scatter", ("fsdp",))] + total.get(("all-reduce", ("fsdp",)), 0.0)
    assert reduced == (layers + unembed) * BF16  # a TPU all-reduces shards narrower than its tile
    # Two block outputs forward, one recomputed (the last is not needed), two backward, a layer; one for the
    # head.
    matmuls = (5 * model.layers + 1) * activation
    assert total[("all-reduce", ("tensor",))] == pytest.approx(matmuls, rel=1e-3)  # the rest is softmax statistics
    assert total[("all-reduce", ("data",))] == (layers + unembed) * BF16 / sizes["fsdp"]


@pytest.mark.parametrize("name", ["v5p_mixed", "v6e_mixed", "tpu7x_mixed"])
def test_tpus_of_every_kind_gather_the_same(name):
    model = fixtures.model(name)
    weights = model.layers * layer_parameters(model) / 2 * BF16
    total = found(name)
    assert 2 * weights <= total[("all-gather", ("fsdp",))] <= 2 * weights + 2 * model.embed * model.vocab * BF16
    assert {axes for _, axes in total} <= {("fsdp",), ("tensor",), ("fsdp", "tensor")}


def test_asynchronous_fusions_count_once():
    names = [one.name for one in collectives(fixtures.module("v5e_mixed"), fixtures.axes("v5e_mixed"))]
    assert len(names) == len(set(names))
    module = fixtures.module("v5e_mixed")
    marks = sum(one.custom_call_target == "AsyncCollectiveStart" for one in module.instructions())
    hidden = [
        one for one in collectives(module, fixtures.axes("v5e_mixed")) if one.asynchronous and one.kind == "all-gather"
    ]
    assert marks == len(hidden) == 11


def test_sparse_core_calls_are_asynchronous():
    found = collectives(fixtures.module("tpu7x_mixed"), fixtures.axes("tpu7x_mixed"))
    text = fixtures.text("tpu7x_mixed")
    assert sum(one.asynchronous for one in found) >= text.count(" call-start(") - text.count(" call-start(%copy") > 0


def test_windowed_matmuls_become_permutes_tied_to_their_operation():
    found = [
        one
        for one in collectives(fixtures.module("v5e_fsdp"), fixtures.axes("v5e_fsdp"))
        if one.kind == "collective-permute"
    ]
    assert len(found) == 80
    assert all("dot_general" in one.op_name and one.axes == ("fsdp",) for one in found)
    assert {one.direction for one in found} == {1, -1}


def test_gpu_collectives_say_whether_anything_hides_them():
    found = collectives(fixtures.module("h100_mixed"), fixtures.axes("h100_mixed"))
    synchronous = fixtures.text("h100_mixed").count('"is_sync":true')
    assert sum(not one.asynchronous for one in found) == synchronous
    assert any(one.between_flops > 0 for one in found)


@pytest.mark.parametrize(
    ("host", "target"), [("cpu_mixed", "h100_mixed"), ("cpu_mixed_012", "h100_mixed"), ("cpu_fsdp", "h100_fsdp")]
)
def test_the_host_tells_what_the_gpu_moves_to_the_byte(host, target):
    # Though its text all-reduces gradients and slices them, widens bfloat16, and reduces what it could add first.
    assert found(host) == found(target)


def test_host_xla_reads_as_a_target():
    name = "cpu_fsdp"
    found = collectives(fixtures.module(name), fixtures.axes(name))
    sliced = [one for one in found if one.reads_as_reduce_scatter]
    assert sliced and all(one.kind == "all-reduce" and one.target_kind == "reduce-scatter" for one in sliced)
    assert all(one.target_nbytes * 2 == one.nbytes for one in sliced)  # float32 that is rounded on arrival


def hand(line, header="num_partitions=8"):
    module = fixtures.program(f"%p = f32[8] parameter(0)\n{line}\nROOT %r = f32[8] copy(%p)", header=header)
    return collectives(module, {"data": 2, "fsdp": 4})


GROUPS = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(
    ("line", "kind", "nbytes"),
    [
        (f"%a = f32[32] all-gather(%p), {GROUPS}, dimensions={{0}}", "all-gather", 128),
        (f"%a = (f32[8], f32[32]) all-gather-start(%p), {GROUPS}, dimensions={{0}}", "all-gather", 128),
        (f"%a = ((f32[8], f32[8]), (f32[32], f32[32])) all-gather-start(%p, %p), {GROUPS}, dimensions={{0}}", "all-gather", 256),
        (f"%a = f32[8] all-reduce(%p), {GROUPS}, to_apply=%add", "all-reduce", 32),
        (f"%a = (f32[8], f32[8]) all-reduce-start(%p, %p), {GROUPS}, to_apply=%add", "all-reduce", 64),
        (f"%a = f32[2] reduce-scatter(%p), {GROUPS}, dimensions={{0}}, to_apply=%add", "reduce-scatter", 32),
        (f"%a = ((f32[8]), f32[2]) reduce-scatter-start(%p), {GROUPS}, dimensions={{0}}, to_apply=%add", "reduce-scatter", 32),
        (f"%a = f32[8] all-to-all(%p), {GROUPS}, dimensions={{0}}", "all-to-all", 32),
        ("%a = f32[8] collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}",
         "collective-permute", 32),
        ("%a = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
         "collective-permute", 32),
        (f"%a = (f32[4], f32[4]) all-gather(%p), {GROUPS}, dimensions={{0}}", "all-gather", 128),
    ],
)  # fmt: skip
def test_bytes_of_every_form(line, kind, nbytes):
    (one,) = hand(line)
    assert (one.kind, one.nbytes, one.target_nbytes, one.axes, one.group_size, one.executions) == (
        kind,
        nbytes,
        nbytes,
        ("fsdp",),
        4,
        1,
    )


@pytest.mark.parametrize(("rows", "room", "nbytes"), [("p", "q", 32), ("q", "p", 32)])
def test_a_ragged_exchange_moves_what_fits_into_both_sides(rows, room, nbytes):
    """8 rows into room for those of all 4 devices on the way there, and back from it."""
    sizes = {"p": 8, "q": 32}
    line = f"%q = f32[32] broadcast(%p)\n%s = s32[4] constant({{2,2,2,2}})\n%a = f32[{sizes[room]}] ragged-all-to-all("
    (one,) = hand(f"{line}%{rows}, %{room}, %s, %s, %s, %s), {GROUPS}")
    assert (one.kind, one.nbytes, one.target_nbytes, one.axes) == ("ragged-all-to-all", nbytes, nbytes, ("fsdp",))


def test_all_devices_and_single_devices():
    (one,) = hand(
        "%a = f32[8] all-reduce(%p), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=%add"
    )
    assert one.axes == ("data", "fsdp") and one.group_size == 8
    assert hand("%a = f32[8] all-reduce(%p), channel_id=1, replica_groups=[8,1]<=[8], to_apply=%add") == ()


def test_executions_multiply_and_unknown_loops_are_marked():
    module = fixtures.module("h100_mixed")
    assert {one.executions for one in collectives(module, fixtures.axes("h100_mixed"))} == {1, 3}
    assert all(one.bounded for one in collectives(module, fixtures.axes("h100_mixed")))


def test_ring_bytes_make_forms_comparable():
    # An all-gather of n bytes over 8 devices is 7 permutes of an eighth each.
    assert ring_bytes("all-gather", 800.0, 8) == 7 * ring_bytes("collective-permute", 100.0, 8) == 700.0
    assert ring_bytes("all-reduce", 800.0, 8) == 2 * ring_bytes("reduce-scatter", 800.0, 8)
    moved = moved_by_axes(collectives(fixtures.module("h100_fsdp"), fixtures.axes("h100_fsdp")))
    total = found("h100_fsdp")
    assert moved[("fsdp",)] == pytest.approx(sum(ring_bytes(kind, n, 8) for (kind, _), n in total.items()))


def test_another_numbering_of_devices():
    order = np.arange(8).reshape(4, 2).T
    module = fixtures.program(
        "%p = f32[8] parameter(0)\nROOT %a = f32[8] all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add"
    )
    (one,) = collectives(module, {"data": 2, "fsdp": 4}, order)
    assert one.axes == ("data",)
