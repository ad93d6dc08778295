"""Kernels against plain references written out in full, in float32, on one device and on meshes of eight."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.plan.plan import mesh_axes
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.kernels import splash
from jaxplan.workload.kernels.attention import attention, kernel
from jaxplan.workload.kernels.blockwise import Blockwise
from jaxplan.workload.kernels.embedding import lookup
from jaxplan.workload.kernels.loss import cross_entropy
from jaxplan.workload.layout import Layout

MESHES = [
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 8},
    {"data": 8},
    {"fsdp": 2, "tensor": 4},
]
# all roles that shard the rows, the sequence or the vocabulary of a lookup and of a loss
LARGER = [
    {"context": 4, "fsdp": 2},
    {"context": 2, "tensor": 2, "group": 2},
    {"fsdp": 2, "expert": 2, "context": 2},
    {"stage": 2, "expert": 2, "context": 2},
    {"data": 2, "context": 2, "tensor": 2},
    {"stage": 2, "fsdp": 2, "tensor": 2},
]


def layout(sizes, sequence_sharding=True, manual=False):
    sizes = {axis.name: axis.size for axis in mesh_axes(sizes)}
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(tuple(sizes.values()))
    return Layout(Mesh(devices, tuple(sizes)), standard_rules(sequence_sharding, False).on(sizes), manual)


def random(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def assert_close(got, expected, tolerance=2e-6):
    """Largest difference relative to the largest expected magnitude: float32 sums in another order."""
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        scale = np.abs(np.asarray(e)).max()
        assert np.abs(np.asarray(g) - np.asarray(e)).max() <= tolerance * scale


def plain_attention(query, key, value):
    """Softmax over an explicit, masked S x S score matrix, keys and values repeated per group."""
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    scores = jnp.einsum("bqnh,bsnh->bnqs", query, key) / np.sqrt(query.shape[-1])
    scores = jnp.where(np.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnqs,bsnh->bqnh", jax.nn.softmax(scores, -1), value)


def weighted(function):
    """A scalar that depends on every element of the result differently."""

    def total(*operands):
        out = function(*operands)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))

    return total


@pytest.mark.parametrize(
    "seq, block, heads, kv_heads", [(32, 8, 4, 4), (32, 8, 8, 2), (24, 16, 2, 1), (7, 4, 2, 2)]
)
def test_blockwise_is_attention(seq, block, heads, kv_heads):
    q, k, v = random(0, 2, seq, heads, 16), random(1, 2, seq, kv_heads, 16), random(2, 2, seq, kv_heads, 16)
    blockwise = Blockwise(block)
    out, logsumexp = blockwise.forward(q, k, v)
    assert_close(out, plain_attention(q, k, v))
    scores = jnp.einsum("bqnh,bsnh->bnqs", q, jnp.repeat(k, heads // kv_heads, 2)) / 4.0
    masked = jnp.where(np.tri(seq, dtype=bool), scores, -jnp.inf)
    assert_close(logsumexp, jax.scipy.special.logsumexp(masked, -1))
    out, pull = jax.vjp(plain_attention, q, k, v)
    assert_close(
        blockwise.backward(q, k, v, out, logsumexp, random(3, *out.shape)), pull(random(3, *out.shape))
    )


def plain_rectangle(query, key, value):
    """All queries attend all keys: result and logsumexp."""
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], 2) for x in (key, value))
    scores = jnp.einsum("bqnh,bsnh->bnqs", query, key) / np.sqrt(query.shape[-1])
    return jnp.einsum("bnqs,bsnh->bqnh", jax.nn.softmax(scores, -1), value), jax.scipy.special.logsumexp(scores, -1)


@pytest.mark.parametrize("queries, keys, block", [(32, 16, 8), (16, 32, 512), (12, 20, 8)])
def test_blockwise_without_a_mask(queries, keys, block):
    q, k, v = random(0, 2, queries, 4, 16), random(1, 2, keys, 2, 16), random(2, 2, keys, 2, 16)
    full = Blockwise(block)
    got = full.forward(q, k, v, causal=False)
    assert_close(got, plain_rectangle(q, k, v))
    out, pull = jax.vjp(lambda *a: plain_rectangle(*a)[0], q, k, v)
    cotangent = random(3, *out.shape)
    assert_close(full.backward(q, k, v, *got, cotangent, causal=False), pull(cotangent))


def test_a_block_of_keys_gets_its_part_of_the_gradient():
    """With the result and the logsumexp of all keys, two blocks' backward passes give the whole gradient."""
    q, k, v = random(0, 1, 16, 2, 8), random(1, 1, 32, 2, 8), random(2, 1, 32, 2, 8)
    (out, logsumexp), cotangent = plain_rectangle(q, k, v), random(3, 1, 16, 2, 8)
    parts = [
        Blockwise().backward(q, k[:, at], v[:, at], out, logsumexp, cotangent, causal=False)
        for at in (slice(0, 12), slice(12, 32))
    ]
    of_keys = (jnp.concatenate(pair, 1) for pair in zip(parts[0][1:], parts[1][1:], strict=True))
    joined = parts[0][0] + parts[1][0], *of_keys
    assert_close(joined, jax.vjp(lambda *a: plain_rectangle(*a)[0], q, k, v)[1](cotangent))


@pytest.mark.parametrize(
    "queries, keys, causal, fused",
    [(256, 256, True, True), (256, 256, True, False), (128, 256, False, True), (256, 128, False, False)],
)
def test_splash_interpreted(monkeypatch, queries, keys, causal, fused):
    """The TPU kernel's own code, run by Pallas' interpreter; one backward kernel or two."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as module

    for name in ("_splash_attention_forward", "_splash_attention_bwd"):
        monkeypatch.setattr(module, name, interpreted(getattr(module, name)))
    monkeypatch.setattr(splash, "LARGEST_BLOCK", 128)
    monkeypatch.setattr(splash, "LARGEST_PARTIALS", 2**20 if fused else 0)
    q, k, v = random(0, 1, queries, 2, 128), random(1, 1, keys, 1, 128), random(2, 1, keys, 1, 128)
    plain = plain_attention if causal else lambda *a: plain_rectangle(*a)[0]
    out, pull = jax.vjp(plain, q, k, v)
    cotangent = random(3, *out.shape)
    got, logsumexp = splash.Splash().forward(q, k, v, causal)
    assert_close(got, out, 1e-5)
    backward = functools.partial(splash.Splash().backward, causal=causal)
    operands = q, k, v, out, logsumexp, cotangent
    assert str(jax.make_jaxpr(backward)(*operands)).count("pallas_call[") == (1 if fused else 2)
    assert_close(backward(*operands), pull(cotangent), 1e-5)


def interpreted(function):
    return lambda *args, **options: function(*args, **{**options, "interpret": True})


@pytest.mark.parametrize("head_dim, expected", [(64, 1024), (128, 1024), (192, 640), (256, 512), (512, 256)])
def test_splash_blocks_of_wide_heads_are_smaller(head_dim, expected):
    """A block's rows times a head's width stay within 1024 x 128: v5e's compiler refuses 1024 x 256, 17.4 of 16 MiB."""
    assert splash.block_size(5 * 4096, head_dim) == expected


def test_splash_looks_at_few_elements_of_a_long_mask():
    """The schedule of a causal mask is the one that JAX makes of its own mask, whose elements it all looks at."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as module
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    got = splash._kernel((4096, 2, 128), 4096, True, fused=False)
    mask = masks.MultiHeadMask([masks.CausalMask((4096, 4096))] * 2)
    expected = module.make_splash_mha(mask, block_sizes=got.kwargs["block_sizes"], head_shards=1, q_seq_shards=1)
    for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
        pairs = zip(*(jax.tree.leaves(getattr(k, name)) for k in (got, expected)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("sizes", [None, *MESHES])
def test_attention_gradients_on_meshes(sizes):
    q, k, v = random(0, 8, 16, 8, 8), random(1, 8, 16, 4, 8), random(2, 8, 16, 4, 8)
    attend = attention("blockwise", layout(sizes) if sizes else None)
    got = jax.jit(jax.value_and_grad(weighted(attend), (0, 1, 2)))(q, k, v)
    assert_close(got, jax.value_and_grad(weighted(plain_attention), (0, 1, 2))(q, k, v), 1e-5)


def test_blockwise_makes_no_square_array():
    seq = 2048
    q = jax.ShapeDtypeStruct((1, seq, 2, 64), jnp.bfloat16)
    step = jax.grad(lambda *a: attention("blockwise")(*a).astype(jnp.float32).sum(), (0, 1, 2))
    compiled = jax.jit(step).lower(q, q, q).compile()
    assert f"{seq},{seq}" not in compiled.as_text()
    # one square float32 score matrix of one head alone would be seq^2 x 4 bytes
    assert compiled.memory_analysis().temp_size_in_bytes < seq * seq * 4


def test_unknown_kernel_is_named():
    with pytest.raises(InputError, match="blockwise, splash, cudnn"):
        kernel("flash")


@pytest.mark.parametrize(
    "sizes, sequence_sharding",
    [
        (None, True),
        *((sizes, True) for sizes in (*MESHES, *LARGER)),
        *((sizes, False) for sizes in (MESHES[3], LARGER[0], LARGER[4])),
    ],
)
def test_lookup_is_indexing(sizes, sequence_sharding):
    table, ids = random(0, 32, 16), jax.random.randint(jax.random.key(1), (8, 16), 0, 32)
    embed = lookup(jnp.float32, layout(sizes, sequence_sharding) if sizes else None)
    got = jax.jit(jax.value_and_grad(weighted(embed)))(table, ids)
    assert_close(got, jax.value_and_grad(weighted(lambda t, i: t[i]))(table, ids))


def plain_loss(x, weight, targets):
    logits = jax.nn.log_softmax(x @ weight, -1)
    return -jnp.sum(jnp.take_along_axis(logits, targets[..., None], -1))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "sizes, sequence_sharding, chunks",
    [
        (None, True, 1),
        (None, True, 3),
        *((sizes, True, 4) for sizes in (*MESHES, *LARGER)),
        (MESHES[3], False, 2),
        (LARGER[4], False, 2),
    ],
)
def test_loss_is_cross_entropy(sizes, sequence_sharding, chunks, tied):
    x, weight = random(0, 8, 16, 16), random(1, 16, 32)
    targets = jax.random.randint(jax.random.key(2), (8, 16), 0, 32)
    loss = cross_entropy(tied, chunks, layout(sizes, sequence_sharding) if sizes else None)
    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, weight.T if tied else weight, targets)
    value, (dx, dw) = jax.value_and_grad(plain_loss, (0, 1))(x, weight, targets)
    assert_close(got, (value, (dx, dw.T if tied else dw)))


def test_loss_holds_one_chunk_of_logits():
    x, weight = (
        jax.ShapeDtypeStruct((1, 1024, 16), jnp.float32),
        jax.ShapeDtypeStruct((16, 4096), jnp.float32),
    )
    targets = jax.ShapeDtypeStruct((1, 1024), jnp.int32)
    grad = jax.jit(jax.grad(cross_entropy(False, 16), (0, 1))).lower(x, weight, targets).compile()
    assert grad.memory_analysis().temp_size_in_bytes < 4 * 1024 * 4096 / 4  # a quarter of the whole logits


def test_collectives_of_the_lookup_are_the_ones_promised():
    """Ids gathered, one exchange of rows; table and gradient never gathered (data 2, fsdp 2, tensor 2)."""
    at = layout(MESHES[0])
    table = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=at.sharding(at.spec(("vocab", "embed"))))
    ids = jax.ShapeDtypeStruct((8, 16), jnp.int32, sharding=at.sharding(at.spec(("batch", ""))))
    text = jax.jit(jax.grad(weighted(lookup(jnp.float32, at)))).lower(table, ids).compile().as_text()
    assert "f32[64,32]" not in text and "f32[64,16]" not in text and "f32[32,32]" not in text
    assert " all-to-all(" in text


def test_lookup_and_loss_in_a_manual_region():
    """Gradients taken inside of a region where every axis is manual: complete, and where the weights are stored."""
    at = layout({"fsdp": 2, "context": 2, "tensor": 2}, manual=True)
    table, weight = random(0, 32, 16), random(1, 16, 32)
    ids, targets = (jax.random.randint(jax.random.key(i), (8, 16), 0, 32) for i in (2, 3))
    embed, loss = lookup(jnp.float32, at), cross_entropy(False, 2, at)

    def step(table, weight, ids, targets):
        return jax.value_and_grad(lambda t, w: loss(embed(t, ids), w, targets), (0, 1))(table, weight)

    t, w, rows = at.spec(("vocab", "embed")), at.spec(("embed", "vocab")), at.spec(("batch", None))
    manual = jax.shard_map(
        step,
        mesh=at.mesh,
        in_specs=(t, w, rows, jax.sharding.PartitionSpec("fsdp", "context")),
        out_specs=(jax.sharding.PartitionSpec(), (t, w)),
        check_vma=False,
    )
    expected = jax.value_and_grad(lambda t, w: plain_loss(t[ids], w, targets), (0, 1))(table, weight)
    assert_close(jax.jit(manual)(table, weight, ids, targets), expected)
