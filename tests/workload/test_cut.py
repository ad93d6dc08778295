"""The cut of each policy against what `jax.checkpoint` really keeps and runs again, to the byte and to the FLOP."""

import dataclasses

import pytest

from jaxplan.plan.remat import POLICIES
from jaxplan.workload.cut import Cut, cut, policy_cut
from jaxplan.workload.decoder import loss_function
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ModelShape
from jaxplan.workload.table import Dim, Operation, Read, Table, Value

LLAMA = ModelShape("llama", layers=4, embed=64, mlp=160, heads=8, kv_heads=4, head_dim=16, vocab=384)
SHAPES = {
    "llama": LLAMA,
    "gpt": dataclasses.replace(
        LLAMA, kv_heads=8, norm="layernorm", positions="learned", max_positions=64, activation="gelu",
        tied_embeddings=True, attention_bias=True, output_bias=True, mlp_bias=True,
    ),
    "gemma": dataclasses.replace(LLAMA, qk_norm=True, post_norms=True, activation="geglu", tied_embeddings=True),
}  # fmt: skip
GROUPS = [name for name, policy in POLICIES.items() if policy.group > 1]
BLOCKS = [name for name in POLICIES if name not in GROUPS]


def table(shape: ModelShape, remat: str) -> Table:
    model = loss_function(shape, 4, 32, remat=remat)
    return trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return SHAPES[request.param]


@pytest.fixture(scope="module")
def plain(shape: ModelShape) -> Table:
    return table(shape, "none")


def kept_bytes(table: Table, values) -> int:
    return sum(table.nbytes(v) * table.values[v].copies for v in values)


def heavy_flops(operations) -> float:
    return sum(op.flops * op.times for op in operations if op.kind in ("matmul", "attention"))


@pytest.mark.parametrize("policy", BLOCKS)
def test_cut_is_what_checkpoint_does(shape: ModelShape, plain: Table, policy: str) -> None:
    found, real = policy_cut(plain, POLICIES[policy]), table(shape, policy)
    assert kept_bytes(plain, found.saved) == kept_bytes(real, real.residuals)
    again = heavy_flops(plain.operations[i] for i in found.recomputed)
    backward = [heavy_flops(op for op in t.operations if op.phase == "backward") for t in (real, plain)]
    assert again == backward[0] - backward[1]
    tagged = [v for v in real.residuals if real.values[v].tag in POLICIES[policy].offloaded]
    assert kept_bytes(plain, found.offloaded) == kept_bytes(real, tagged)
    assert sorted([*found.offloaded, *found.on_device]) == sorted(found.saved)


@pytest.mark.parametrize("policy", GROUPS)
def test_cut_of_groups_is_what_nested_loops_do(shape: ModelShape, plain: Table, policy: str) -> None:
    found, real = policy_cut(plain, POLICIES[policy]), table(shape, policy)
    again = heavy_flops(plain.operations[i] for i in (*found.again, *found.recomputed))
    backward = [heavy_flops(op for op in t.operations if op.phase == "backward") for t in (real, plain)]
    assert again == backward[0] - backward[1]
    # inside of a group its blocks keep what those of a model of that many layers keep
    small = table(dataclasses.replace(shape, layers=found.group), "dots" if POLICIES[policy].inside else "full")
    assert found.group * sum(plain.nbytes(v) for v in found.inside) == kept_bytes(
        small, [v for v in small.residuals if small.values[v].copies > 1]
    )


@pytest.mark.parametrize("policy", ["full", *GROUPS])
def test_inputs_that_are_kept_are_those_of_jax(shape: ModelShape, plain: Table, policy: str) -> None:
    """The loop's stacked residuals, as JAX's own list has them, are one input a group."""
    from jax._src.ad_checkpoint import saved_residuals

    model = loss_function(shape, 4, 32, remat=policy)
    stream = (4, 32, shape.embed)
    kept = [aval for aval, why in saved_residuals(model.loss, model.params, model.batch) if "argument" not in why]
    stacked = [aval.shape for aval in kept if aval.shape[1:] == stream]
    found = policy_cut(plain, POLICIES[policy])
    assert stacked == [(shape.layers // found.group, *stream)]
    assert [found.copies(plain, v) for v in found.saved if plain.values[v].copies > 1] == [stacked[0][0]]


def test_what_a_router_chose_is_kept_of_every_layer() -> None:
    """One layer of 4, by hand: route = choose(x); y = x @ w read backward, and route as well."""
    x, route, w, y = range(4)
    dims, whole = ((0,),), {"times": 4, "scope": ("layers",)}
    made = (Operation("dot", "matmul", "forward", 8.0, (Read(x, dims), Read(w, dims)), (y,), (0,), **whole),)
    made = (Operation("max", "reduce", "forward", 0.0, (Read(x, dims),), (route,), (0,), **whole), *made)
    values = (Value(dims, 2, copies=4), Value(dims, 4, copies=4, tag="route"), Value(dims, 2, "parameter"))
    plain = Table((Dim("batch", 8),), (*values, Value(dims, 2, copies=4)), made, (x, route, y), (), (), (), {})
    found = policy_cut(plain, POLICIES["every-2"])
    assert [(v, found.copies(plain, v)) for v in found.saved] == [(x, 2), (route, 4)]
    assert found.inside == (x,) and found.again == (0, 1) and found.recomputed == (1,)


def test_keeping_everything_recomputes_nothing(plain: Table) -> None:
    assert cut(plain, None) == Cut(plain.residuals, ())


def test_keeping_nothing_keeps_each_blocks_input(plain: Table, shape: ModelShape) -> None:
    saved = [plain.values[v] for v in cut(plain, frozenset()).saved if plain.values[v].copies > 1]
    assert [value.copies for value in saved] == [shape.layers]
    assert [plain.dims[d].name for d in saved[0].dims] == ["batch", "seq", "embed"]


def test_residuals_without_a_policy_are_those_of_jax() -> None:
    """`saved_residuals` lists what a layer without remat keeps: the sum of its bytes, layer by layer."""
    import jax
    import jax.numpy as jnp
    from jax._src.ad_checkpoint import saved_residuals

    def loss(params: dict, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = jnp.sin(x @ params["a"]) @ params["b"]
        return jnp.sum(x)

    shapes = {"a": jax.ShapeDtypeStruct((16, 64), jnp.float32), "b": jax.ShapeDtypeStruct((64, 16), jnp.float32)}
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    made = [aval for aval, why in saved_residuals(loss, shapes, x) if "argument" not in why]
    expected = sum(aval.size * aval.dtype.itemsize for aval in made)
    found = trace(loss, shapes, x)
    assert kept_bytes(found, found.residuals) == expected
