"""Tables of whole programs: names as a reader of the program would give them, work by closed form."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from program_models import LLAMA, PROGRAMS, llama

from jaxplan.workload.decoder import loss_function
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ModelShape
from jaxplan.workload.table import Table

SHAPE = ModelShape("tiny", layers=3, embed=64, mlp=160, heads=8, kv_heads=4, head_dim=16, vocab=384)
BATCH, SEQ = 4, 32


def names(table: Table, shape) -> list[list[str]]:
    return [[table.dims[d].name for d in sequence] for sequence in shape]


def leaves(table: Table) -> dict[str, list[list[str]]]:
    return {leaf.path: names(table, leaf.shape) for leaf in table.parameters}


def decoder_table(shape: ModelShape = SHAPE, remat: str = "none", update=None) -> Table:
    model = loss_function(shape, BATCH, SEQ, remat=remat)
    return trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims, update)


@pytest.fixture(scope="module")
def decoder() -> Table:
    return decoder_table(update=optax.adamw(1e-3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_dim_of_every_matmul_is_named(name: str) -> None:
    table = trace(*PROGRAMS[name]())
    assert table.uncovered == {}
    for operation in table.operations:
        if operation.kind == "matmul":
            found = [table.dims[d].name for d in operation.dims]
            assert not [n for n in found if n.startswith("?")], operation
            assert len(set(operation.dims)) == len(operation.dims)


def test_roles_of_an_unannotated_decoder() -> None:
    found = leaves(trace(*llama()))
    assert found["table"] == [["vocab"], ["embed"]]
    assert found["head"] == [["embed"], ["vocab"]]
    assert found["block.q"] == [["layers"], ["embed"], ["kv_heads", "group", "head_dim"]]
    assert found["block.k"] == found["block.v"] == [["layers"], ["embed"], ["kv_heads", "head_dim"]]
    assert found["block.o"] == [["layers"], ["kv_heads", "group", "head_dim"], ["embed"]]
    assert found["block.up"] == [["layers"], ["embed"], ["mlp"]]
    assert found["block.down"] == [["layers"], ["mlp"], ["embed"]]


def test_roles_of_other_programs() -> None:
    linen = leaves(trace(*PROGRAMS["linen"]()))
    query = next(shape for path, shape in linen.items() if path.endswith("query.kernel"))
    assert query == [["layers"], ["embed"], ["heads"], ["head_dim"]]
    moe = leaves(trace(*PROGRAMS["moe"]()))
    assert moe["block.up"] == [["layers"], ["expert"], ["embed"], ["mlp"]]
    assert moe["block.router"] == [["layers"], ["embed"], ["expert"]]
    vit = leaves(trace(*PROGRAMS["vit"]()))
    assert next(shape for path, shape in vit.items() if "query.kernel" in path) == [["embed"], ["heads"], ["head_dim"]]


def test_features_of_a_batch_are_named_by_what_the_program_does_with_them() -> None:
    """(B, 48) rows are no sequences: a residual stream over them is the embedding, else they are features."""

    def stream(p, x):
        return jnp.mean((x + jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)

    def layers(p, x):
        return jnp.mean(jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["b"]) @ p["c"])

    def shapes(**sizes):
        return {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}

    x = jax.ShapeDtypeStruct((16, 48), jnp.float32)
    assert leaves(trace(stream, shapes(up=(48, 96), down=(96, 48)), x))["up"] == [["embed"], ["mlp"]]
    found = leaves(trace(layers, shapes(a=(48, 96), b=(96, 64), c=(64, 8)), x))
    assert found == {"a": [["features"], ["embed"]], "b": [["embed"], ["mlp"]], "c": [["mlp"], ["c:1"]]}


@pytest.mark.parametrize("scan", [True, False])
def test_flops_of_an_unannotated_decoder(scan: bool) -> None:
    """2 FLOPs a parameter and token forward, 4 backward; attention 4 B S S N H forward, unmasked (no kernel)."""
    table, m = trace(*llama(scan=scan, remat=False)), LLAMA
    tokens, width = m["batch"] * m["seq"], m["embed"] // m["heads"]
    block = m["embed"] * (2 * m["embed"] + 2 * m["kv_heads"] * width + 3 * m["mlp"])
    weights = m["layers"] * block + m["embed"] * m["vocab"]
    attention = m["layers"] * 4 * tokens * m["seq"] * m["embed"]
    assert table.flops("matmul", "forward") == 2 * tokens * weights + attention
    assert table.flops("matmul", "backward") == 2 * (2 * tokens * weights + attention)


def test_recomputation_is_backward_and_says_so() -> None:
    plain, remat = trace(*llama(remat=False)), trace(*llama(remat=True))
    again = [op for op in remat.operations if op.source.endswith("(remat)") and op.kind == "matmul"]
    extra = remat.flops("matmul", "backward") - plain.flops("matmul", "backward")
    assert extra == sum(op.flops * op.times for op in again) > 0
    assert all(op.phase == "backward" for op in again)


def test_flops_of_the_decoder(decoder: Table) -> None:
    """6 x parameters x tokens, and the loss kernel's logits once more; attention causal: 2 and 5 matmuls
    of half.
    """
    s, tokens = SHAPE, BATCH * SEQ
    block = s.embed * (2 * s.heads * s.head_dim + 2 * s.kv_heads * s.head_dim + 3 * s.mlp)
    head = s.embed * s.vocab
    assert decoder.flops("matmul", "forward") == 2 * tokens * (s.layers * block + head)
    assert decoder.flops("matmul", "backward") == 4 * tokens * (s.layers * block + head) + 2 * tokens * head
    score = 2 * BATCH * s.heads * SEQ * SEQ * s.head_dim / 2
    assert decoder.flops("attention", "forward") == s.layers * 2 * score
    assert decoder.flops("attention", "backward") == s.layers * 5 * score
    assert decoder.uncovered == {}


def test_kernels_of_the_decoder(decoder: Table) -> None:
    kernels = {op.primitive: op for op in decoder.operations if op.primitive.startswith("jaxplan_")}
    attention = kernels["jaxplan_attention_forward"]
    dims = [decoder.dims[d].name for d in attention.dims]
    assert dims == ["batch", "kv_heads", "group", "seq", "seq'", "head_dim"]
    assert names(decoder, attention.reads[0].shape)[2] == ["kv_heads", "group"]
    assert names(decoder, attention.reads[1].shape) == [["batch"], ["seq'"], ["kv_heads"], ["head_dim"]]
    assert [decoder.values[v].tag for v in attention.writes] == ["attention", "attention"]
    for name in ("jaxplan_embed_forward", "jaxplan_embed_backward"):
        assert kernels[name].kind == "lookup"
        assert {decoder.dims[d].name for d in kernels[name].dims} == {"batch", "seq", "embed", "vocab"}
    products = [op for op in decoder.operations if op.scope == ("chunk",) and op.kind == "matmul"]
    assert [op.phase for op in products] == ["forward", "backward", "backward", "backward"]
    logits = decoder.values[products[0].writes[0]]
    assert names(decoder, logits.shape) == [["batch"], ["seq"], ["vocab"]] and logits.itemsize == 4


def test_given_names_win_and_a_cut_dim_keeps_its_major_part() -> None:
    model = loss_function(SHAPE, BATCH, SEQ)
    renamed = jax.tree.map(
        lambda dims: tuple("width" if name == "mlp" else name for name in dims),
        model.parameter_dims,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    table = trace(model.loss, model.params, model.batch, renamed, model.batch_dims)
    assert leaves(table)["layers.up"] == [["layers"], ["embed"], ["width"]]
    assert leaves(table)["layers.query"] == [["layers"], ["embed"], ["kv_heads", "group"], ["head_dim"]]


def test_given_names_must_fit_the_tensor() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(x @ w)

    w, x = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((2, 4), jnp.float32)
    with pytest.raises(ValueError, match="expected 2 dim names"):
        trace(loss, w, x, ("embed",), None)


def test_optimizer_state_is_named_like_its_parameters(decoder: Table) -> None:
    moments = {leaf.path: names(decoder, leaf.shape) for leaf in decoder.optimizer}
    for path, shape in leaves(decoder).items():
        assert moments[f"0.mu.{path}"] == moments[f"0.nu.{path}"] == shape
    assert {op.phase for op in decoder.operations} == {"forward", "backward", "update"}
    assert all(op.kind != "matmul" for op in decoder.operations if op.phase == "update")


def test_factored_optimizer_state_is_named() -> None:
    table = decoder_table(update=optax.adafactor(1e-3, min_dim_size_to_factor=16))
    rows = next(leaf for leaf in table.optimizer if leaf.path.endswith("v_row.unembed"))
    assert names(table, rows.shape) in ([["embed"]], [["vocab"]])


def test_operations_say_which_parameter_they_serve(decoder: Table) -> None:
    for phase, times in (("forward", 1), ("backward", 2)):
        found = [op.source for op in decoder.operations if op.kind == "matmul" and op.phase == phase]
        assert found.count("layers.query") == times and found.count("layers.down") == times


def test_what_has_no_rule_is_counted_and_still_connects() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.linalg.qr(x @ w)[0])

    w, x = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
    table = trace(loss, w, x)
    # the decomposition's own primitives (geqrf and householder_product, or qr) have no rule; what feeds
    # them stays
    assert set(table.uncovered) & {"qr", "geqrf", "householder_product"}
    product = next(op for op in table.operations if op.kind == "matmul" and op.phase == "forward")
    assert product.flops == 2 * 8 * 4 * 4
    assert any(read.value in product.writes for op in table.operations for read in op.reads)


def test_a_while_loop_is_uncovered_and_counted_once() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jax.lax.stop_gradient(jax.lax.while_loop(lambda y: jnp.max(y) < 10, lambda y: y @ jnp.ones((4, 4)), x))
        return jnp.sum(y @ w)

    table = trace(loss, jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32))
    assert "while (trip count unknown)" in table.uncovered


def test_of_a_conditional_the_costliest_branch_counts() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x))

    w, x = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
    assert trace(loss, w, x).flops("matmul", "forward") == 2 * 8 * 4 * 4


def test_a_nested_loop_multiplies() -> None:
    """5 x 3 iterations of (64, 128) @ (128, 128): 31,457,280 FLOPs."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(inner, x, None, length=3)[0], None

        return jnp.sum(jax.lax.scan(outer, x, None, length=5)[0])

    table = trace(loss, jax.ShapeDtypeStruct((128, 128), jnp.float32), jax.ShapeDtypeStruct((64, 128), jnp.float32))
    assert table.flops("matmul", "forward") == 31_457_280
    assert next(op for op in table.operations if op.kind == "matmul").scope == ("loop", "loop")


def test_a_table_survives_json(decoder: Table) -> None:
    assert Table.from_json(json.loads(json.dumps(decoder.to_json()))) == decoder
    assert decoder.compute_dtype == "bfloat16"
    assert {leaf.dtype for leaf in decoder.parameters} == {"float32"}
    assert {leaf.dtype for leaf in decoder.batch} == {"int32"}


def test_the_parameter_count_is_the_programs(decoder: Table) -> None:
    model = loss_function(SHAPE, BATCH, SEQ)
    assert decoder.parameter_count == sum(leaf.size for leaf in jax.tree.leaves(model.params))


def test_tied_and_learned_variants_are_covered() -> None:
    shape = dataclasses.replace(
        SHAPE, kv_heads=8, norm="layernorm", positions="learned", max_positions=64, activation="gelu",
        tied_embeddings=True, attention_bias=True, output_bias=True, mlp_bias=True, qk_norm=True,
    post_norms=True, )  # fmt: skip
    table = decoder_table(shape)
    assert table.uncovered == {}
    products = [op for op in table.operations if op.scope == ("chunk",) and op.kind == "matmul"]
    assert names(table, products[0].reads[1].shape) == [["vocab"], ["embed"]]
