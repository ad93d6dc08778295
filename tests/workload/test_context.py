"""Context parallelism and shared key-value heads: 8 virtual CPU devices against one, in float32."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.block import Block
from jaxplan.workload.decoder import loss_function
from jaxplan.workload.impose import impose
from jaxplan.workload.kernels.attention import attention
from jaxplan.workload.kernels.zigzag import Order, zigzag
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims
from jaxplan.workload.rotary import rotary_angles
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.step import build
from jaxplan.workload.weights import block_dims

BATCH, SEQ = 8, 64
LLAMA = ModelShape("tiny", layers=2, embed=64, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
TWO = dataclasses.replace(LLAMA, name="two key-value heads", kv_heads=2)
OLD = dataclasses.replace(
    LLAMA,
    name="old",
    norm="layernorm",
    positions="learned",
    max_positions=SEQ,
    activation="gelu",
    tied_embeddings=True,
    attention_bias=True,
)
SHAPES = {"llama": LLAMA, "two": TWO, "old": OLD}


def layout_of(sequence_sharding=True, manual=False, **sizes):
    sizes = {axis.name: axis.size for axis in mesh_axes(sizes)}
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(tuple(sizes.values()))
    return Layout(Mesh(devices, tuple(sizes)), standard_rules(sequence_sharding, False).on(sizes), manual)


def plan_of(shape, sizes, remat="full", **more):
    work = Workload(shape, BATCH, SEQ, compute_dtype="float32")
    return Plan(catalogue.machine("2x4", "v5e", None), work, mesh_axes(sizes), remat, 1, "blockwise", **more)


def batch():
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, 64) for key in jax.random.split(jax.random.key(7))]
    return {"tokens": ids[0], "targets": ids[1]}


def difference(got, expected):
    """The largest difference of each leaf, relative to that leaf's largest magnitude.

    A leaf that is rounding alone (softmax does not see a key's bias) is compared at 1e-3 of the largest.
    """
    pairs = [(np.asarray(g), np.asarray(e)) for g, e in zip(*map(jax.tree.leaves, (got, expected)), strict=True)]
    floor = 1e-3 * max(np.abs(e).max() for _, e in pairs)
    return max(float(np.abs(g - e).max() / max(np.abs(e).max(), floor)) for g, e in pairs)


@functools.cache
def alone(name):
    """Parameters, loss and gradients of one device without any layout."""
    model = loss_function(SHAPES[name], BATCH, SEQ, compute_dtype=jnp.float32)
    params = model.init(jax.random.key(0))
    return params, compiled(jax.value_and_grad(model.loss), params, batch())


def compiled(function, *operands):
    """The function's result from a compile that leaves out what makes code fast: a fifth of the time."""
    return jax.jit(function).lower(*operands).compile({"xla_backend_optimization_level": 0})(*operands)


def stored(params, layout, dims):
    specs = [layout.sharding(layout.parameter_spec(names)) for names in leaf_dims(params, dims)]
    return jax.device_put(params, jax.tree.structure(params).unflatten(specs))


# one case a line: model, mesh, context attention, remat
CASES = [
    ("llama", {"context": 8}, "ring", "full"),
    ("llama", {"context": 4, "data": 2}, "ring", "none"),
    ("llama", {"context": 2, "fsdp": 2, "tensor": 2}, "ring", "full"),
    ("llama", {"context": 2, "data": 2, "tensor": 2}, "ring", "none"),
    ("llama", {"context": 4, "tensor": 2}, "ring", "attention"),
    ("old", {"context": 4, "fsdp": 2}, "ring", "full"),
    ("llama", {"context": 2, "fsdp": 4}, "ulysses", "full"),
    ("llama", {"context": 4, "data": 2}, "ulysses", "none"),
    ("two", {"context": 4, "fsdp": 2}, "ulysses", "full"),
    ("two", {"context": 8}, "ulysses", "attention"),
    ("llama", {"context": 2, "fsdp": 2, "tensor": 2}, "ulysses", "full"),
    ("two", {"tensor": 2, "group": 2, "fsdp": 2}, "ring", "full"),
    ("llama", {"tensor": 4, "group": 2}, "ring", "none"),
    ("two", {"tensor": 2, "group": 2, "context": 2}, "ring", "full"),
    ("two", {"tensor": 2, "group": 2, "context": 2}, "ulysses", "none"),
]
FREE = [CASES[i] for i in (2, 5, 8, 13)]


def words(case):
    if isinstance(case, bool):
        return "imposed" if case else "free"
    return "-".join([case[0], *(f"{axis}{size}" for axis, size in case[1].items()), *case[2:]])


@pytest.mark.parametrize("imposed, case", [*((True, c) for c in CASES), *((False, c) for c in FREE)], ids=words)
def test_parity(imposed, case):
    """Loss and every leaf of the gradients."""
    name, sizes, context, remat = case
    params, expected = alone(name)
    layout = layout_of(**sizes)
    model = build(plan_of(SHAPES[name], sizes, remat, context_attention=context), layout.mesh, impose=False).model
    loss = model.loss
    if imposed:
        dims = model.parameter_dims, model.batch_dims
        loss = impose(loss, model.params, model.batch, layout.rules, layout.mesh, *dims)
    got = compiled(jax.value_and_grad(loss), stored(params, layout, model.parameter_dims), batch())
    assert float(got[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    assert difference(got[1], expected[1]) < 1e-4


@pytest.mark.parametrize("seq, shards", [(16, 2), (24, 4), (48, 8), (12, 3), (8, 1)])
def test_zigzag_is_its_definition(seq, shards):
    """Shard i of n holds chunks i and 2n - 1 - i of 2n (arXiv:2407.21783, section 3.3.2)."""
    chunks = np.split(np.arange(seq), 2 * shards)
    expected = np.concatenate([np.concatenate([chunks[i], chunks[2 * shards - 1 - i]]) for i in range(shards)])
    assert np.array_equal(zigzag(seq, shards), expected)


def test_causal_work_is_the_same_everywhere():
    """Keys that a shard's queries may see: a position p sees p + 1."""
    work = (zigzag(64, 4) + 1).reshape(4, -1).sum(1)
    assert set(work) == {64 * 65 // 2 // 4}


def test_the_programs_order():
    layout = layout_of(context=4, fsdp=2)
    ring, natural = Order.of(layout, "ring"), Order.of(layout, "ulysses")
    ids = jnp.arange(BATCH * SEQ).reshape(BATCH, SEQ)
    places = zigzag(SEQ, 4)
    assert np.array_equal(jax.jit(ring.apply, static_argnums=1)(ids, ("batch", "seq")), ids[:, places])
    table = jnp.arange(SEQ * 16.0).reshape(SEQ, 16)
    assert np.array_equal(jax.jit(ring.apply, static_argnums=1)(table, ("seq", "embed")), table[places])
    assert np.array_equal(ring.positions(SEQ), places)
    assert np.array_equal(natural.apply(ids, ("batch", "seq")), ids)
    assert np.array_equal(natural.positions(SEQ), np.arange(SEQ))
    assert np.array_equal(Order.of(None, "ring").positions(SEQ), np.arange(SEQ))


def test_putting_tokens_in_order_moves_nothing():
    layout = layout_of(context=4, fsdp=2)
    order = Order.of(layout, "ring")
    ids = jax.ShapeDtypeStruct((BATCH, SEQ), jnp.int32, sharding=layout.sharding(PartitionSpec("fsdp")))
    there = layout.sharding(PartitionSpec("fsdp", "context"))
    text = jax.jit(lambda x: order.apply(x, ("batch", "seq")), out_shardings=there).lower(ids).compile().as_text()
    assert not any(f" {kind}" in text for kind in ("collective-permute", "all-to-all", "all-gather", "all-reduce"))


def plain_attention(query, key, value):
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    scores = jnp.einsum("bqnh,bsnh->bnqs", query, key) / np.sqrt(query.shape[-1])
    scores = jnp.where(np.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnqs,bsnh->bqnh", jax.nn.softmax(scores, -1), value)


@pytest.mark.parametrize("context", ["ring", "ulysses"])
@pytest.mark.parametrize("shards, heads, kv_heads", [(2, 4, 4), (3, 6, 3), (4, 8, 2), (8, 8, 1), (4, 24, 6)])
def test_attention_of_a_sharded_sequence(context, shards, heads, kv_heads):
    """Result and cotangents are those of the whole sequence, whatever the ring's length and the heads."""
    seq = 48
    widths = enumerate((heads, kv_heads, kv_heads, heads))
    q, k, v, do = (jax.random.normal(jax.random.key(seed), (2, seq, n, 8)) for seed, n in widths)
    places = zigzag(seq, shards) if context == "ring" else np.arange(seq)
    out, pull = jax.vjp(plain_attention, q, k, v)
    expected = jax.tree.map(lambda x: x[:, places], (out, *pull(do)))
    attend = attention("blockwise", layout_of(context=shards), context)

    def both(q, k, v, do):
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(do)

    assert difference(compiled(both, *(x[:, places] for x in (q, k, v, do))), expected) < 1e-5


@pytest.mark.parametrize(
    "sizes, context",
    [
        ({"tensor": 2, "group": 2, "fsdp": 2}, "ring"),
        ({"tensor": 2, "group": 2, "context": 2}, "ring"),
        ({"tensor": 2, "group": 2, "context": 2}, "ulysses"),
        ({"context": 4, "data": 2}, "ring"),
    ],
    ids=str,
)
def test_a_block_in_a_manual_region(sizes, context):
    """A block whose exchanges are all written out, differentiated from outside: the region's end adds up gradients."""
    shape, layout = TWO, layout_of(manual=True, **sizes)
    names = {name: ("layers", *dims) for name, dims in block_dims(shape).items()}
    params = alone("two")[0]["layers"]
    x = jax.random.normal(jax.random.key(3), (BATCH, SEQ, shape.embed))
    order = Order.of(layout, context)
    places = np.asarray(order.positions(SEQ))

    def free(value, names):
        return value

    def whole(x, weights):
        plain = Block(shape, attention("blockwise"), free, lambda name, value: value, free, free)
        rotary = rotary_angles(jnp.arange(SEQ), shape.head_dim, shape.rope_theta)
        return jnp.sum(jnp.sin(plain(x, {name: w[0] for name, w in weights.items()}, rotary)))

    def weight(name, value):
        return layout.gathered(value[0], block_dims(shape)[name], jnp.float32)

    def local(x, weights, rotary):
        attend = attention("blockwise", layout, context)
        return Block(shape, attend, free, weight, layout.enter, layout.leave)(x, weights, rotary)

    def parts(x, weights):
        rotary = rotary_angles(order.positions(SEQ), shape.head_dim, shape.rope_theta)
        stream, angles = layout.spec(("batch", "seq", "embed")), PartitionSpec(layout.context_axes or None)
        specs = stream, {name: layout.parameter_spec(names[name]) for name in weights}, angles
        run = jax.shard_map(local, mesh=layout.mesh, in_specs=specs, out_specs=stream, check_vma=False)
        return jnp.sum(jnp.sin(run(x, weights, rotary)))

    value, (dx, grads) = compiled(jax.value_and_grad(parts, (0, 1)), x[:, places], params)
    expected, (whole_dx, whole_grads) = compiled(jax.value_and_grad(whole, (0, 1)), x, params)
    assert float(value) == pytest.approx(float(expected), rel=1e-4)     # a sum of 32,768 terms of either sign
    assert difference((dx, grads), (whole_dx[:, places], whole_grads)) < 1e-4


def test_what_cannot_be_sharded_is_said():
    ids = jnp.zeros((BATCH, 36), jnp.int32)
    with pytest.raises(InputError, match=r"sequence 36 over context 4\. Expected a multiple of 2 x 4"):
        Order.of(layout_of(context=4), "ring").apply(ids, ("batch", "seq"))
    with pytest.raises(InputError, match=r"context attention 'star'.*ring, ulysses"):
        attention("blockwise", None, "star")
    q, k = jax.ShapeDtypeStruct((2, 16, 6, 8), jnp.float32), jax.ShapeDtypeStruct((2, 16, 2, 8), jnp.float32)
    with pytest.raises(ValueError, match="multiple of as many query heads on each, got 6"):
        jax.eval_shape(attention("blockwise", layout_of(context=4), "ulysses"), q, k, k)
    q, k = jax.ShapeDtypeStruct((2, 16, 8, 8), jnp.float32), jax.ShapeDtypeStruct((2, 16, 4, 8), jnp.float32)
    with pytest.raises(ValueError, match="one key-value head a device, got 2"):
        jax.eval_shape(attention("blockwise", layout_of(tensor=2, group=2)), q, k, k)
