"""Multi-head latent attention: written out, the same on every mesh, what it costs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims
from jaxplan.workload.parameters import parameter_count
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ExpertShape, LatentAttentionShape, ModelShape, Workload
from jaxplan.workload.step import build

BATCH, SEQ, VOCAB = 8, 16, 64
LOSS, GRADIENT = 1e-5, 1e-4
EXACT = {"compute_dtype": jnp.float32}
LATENT = LatentAttentionShape(query_rank=24, kv_rank=16, rope_head_dim=4, nope_head_dim=8, value_head_dim=8)
RANKED = ModelShape(
    "ranked", layers=2, embed=32, mlp=48, heads=8, kv_heads=8, head_dim=12, vocab=VOCAB, latent_attention=LATENT
)
DIRECT = dataclasses.replace(RANKED, name="direct", latent_attention=dataclasses.replace(LATENT, query_rank=0))
MIXED = dataclasses.replace(
    RANKED, name="mixed", layers=3, experts=ExpertShape(4, 2, 16, shared=1, shared_mlp=16, first_dense_layers=1)
)


def batch():
    keys = jax.random.split(jax.random.key(7))
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, VOCAB) for key in keys]
    return {"tokens": ids[0], "targets": ids[1]}


def worst(got, expected):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(g - e).max() / jnp.maximum(jnp.abs(e).max(), 1e-30)) for g, e in pairs)


def plain_loss(shape, params, batch):
    """Head by head, position by position of the rotary parts (arXiv:2405.04434, equations 9 to 19)."""
    latent = shape.latent_attention
    half = latent.rope_head_dim // 2
    angle = jnp.arange(SEQ)[:, None] / shape.rope_theta ** (jnp.arange(half) / half)

    def rms(x, scale):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + shape.norm_eps) * scale

    def rope(x):
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)

    def head(w, h, n):
        if latent.query_rank:
            q = rms(h @ w["query_down"], w["query_rank_norm"]) @ w["query_up"][:, n]
        else:
            q = h @ w["query"][:, n]
        c = rms(h @ w["latent_down"], w["latent_norm"])
        q = jnp.concatenate([q[..., : latent.nope_head_dim], rope(q[..., latent.nope_head_dim :])], -1)
        k = jnp.concatenate([c @ w["key_up"][:, n], rope(h @ w["rotary_key"])], -1)
        scores = jnp.einsum("bqh,bsh->bqs", q, k) / np.sqrt(latent.nope_head_dim + latent.rope_head_dim)
        scores = jax.nn.softmax(jnp.where(np.tri(SEQ, dtype=bool), scores, -jnp.inf), -1)
        return scores @ (c @ w["value_up"][:, n]) @ w["output"][:, n].T

    x = params["embedding"][batch["tokens"]]
    for layer in range(shape.layers):
        w = {name: value[layer] for name, value in params["layers"].items()}
        h = rms(x, w["attention_norm"])
        x = x + sum(head(w, h, n) for n in range(shape.heads))
        h = rms(x, w["mlp_norm"])
        x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"].T
    logits = jax.nn.log_softmax(rms(x, params["final_norm"]) @ params["unembed"], -1)
    return -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], -1))


@pytest.mark.parametrize("shape", [RANKED, DIRECT], ids=lambda s: s.name)
def test_loss_and_gradients_are_those_of_a_model_written_out(shape):
    model = loss_function(shape, BATCH, SEQ, **EXACT)
    params = model.init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameter_count(shape)
    value, grads = jax.jit(jax.value_and_grad(model.loss))(params, batch())
    expected, expected_grads = jax.jit(jax.value_and_grad(lambda p: plain_loss(shape, p, batch())))(params)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert worst(grads, expected_grads) < 2e-5


@functools.cache
def alone(shape, groups):
    model = loss_function(shape, BATCH, SEQ, kernels=Kernels(expert_groups=groups), **EXACT)
    params = model.init(jax.random.key(0))
    return jax.device_get((params, *jax.jit(jax.value_and_grad(model.loss))(params, batch())))


@pytest.mark.parametrize(
    ("shape", "sizes", "remat", "decisions"),
    [
        (RANKED, {"tensor": 4, "fsdp": 2}, "full", {}),
        (DIRECT, {"tensor": 2, "fsdp": 2, "data": 2}, "none", {"sequence_sharding": False}),
        (RANKED, {"context": 2, "tensor": 2, "fsdp": 2}, "qkv", {}),
        (MIXED, {"expert": 2, "tensor": 2, "fsdp": 2}, "full", {}),
        (MIXED, {"stage": 2, "expert": 2, "tensor": 2}, "full", {}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else getattr(value, "name", value),
)
def test_loss_and_gradients_do_not_depend_on_the_mesh(shape, sizes, remat, decisions):
    work = Workload(shape, BATCH, SEQ, compute_dtype="float32")
    machine, axes = catalogue.machine("2x4", "v5e", None), mesh_axes(sizes)
    microbatches = 2 if "stage" in sizes else 1
    plan = Plan(machine, work, axes, remat, microbatches, "blockwise", loss_chunks=2, **decisions)
    params, loss, grads = alone(shape, plan.expert_groups)
    devices = np.array(jax.devices()).reshape([axis.size for axis in axes])
    step = build(plan, Mesh(devices, [axis.name for axis in axes]))
    held = [
        jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, like)
        for tree, like in ((params, step.abstract_state.params), (batch(), step.abstract_batch))
    ]
    got_loss, got = jax.jit(step.gradients)(*held)
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    assert worst(jax.device_get(got), grads) <= GRADIENT


def test_every_matrix_is_stored_in_parts():
    """Fully sharded over 8: no weight with more than one dim is whole anywhere, the ranks' included."""
    plan = Plan(
        catalogue.machine("2x4", "v5e", None),
        Workload(RANKED, BATCH, SEQ),
        mesh_axes({"fsdp": 8}),
        "full",
        1,
        "blockwise",
    )
    layout = Layout(Mesh(np.array(jax.devices()).reshape(1, 8, 1), ("data", "fsdp", "tensor")), plan.rules)
    model = loss_function(RANKED, BATCH, SEQ)
    for leaf, names in zip(
        jax.tree.leaves(model.params), leaf_dims(model.params, model.parameter_dims), strict=True
    ):
        spec = layout.parameter_spec(names)
        parts = np.prod([8 if axes == "fsdp" else 1 for axes in spec])
        assert parts == (8 if len(leaf.shape) - ("layers" in names) > 1 else 1), names


def test_table_names_every_dim_and_counts_the_padding_of_values():
    """Attention computes values as wide as keys, 12 instead of 8: two causal products of heads x 12 forward."""
    model = loss_function(RANKED, BATCH, SEQ)
    table = trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims)
    assert not table.uncovered
    names = {dim.name for dim in table.dims}
    assert {"q_rank", "kv_rank", "heads", "rotary_dim", "plain_dim", "value_dim"} <= names
    assert table.flops("attention", "forward") == RANKED.layers * 2 * 2 * BATCH * 8 * SEQ * SEQ * 12 / 2
    tokens, heads = BATCH * SEQ, 8
    down = 32 * 24 + 32 * 16 + 32 * 4
    up = heads * (24 * 12 + 16 * 8 + 16 * 8 + 8 * 32)
    expected = 2 * tokens * (2 * (down + up + 3 * 32 * 48) + 32 * VOCAB)
    assert table.flops("matmul", "forward") == expected


def test_what_cannot_run_is_said():
    wide = dataclasses.replace(RANKED, latent_attention=dataclasses.replace(LATENT, value_head_dim=16))
    model = loss_function(wide, BATCH, SEQ)
    with pytest.raises(InputError, match="values of 16 a head"):
        jax.eval_shape(model.loss, model.params, model.batch)
    with pytest.raises(ValueError, match="rope_head_dim must be even"):
        dataclasses.replace(LATENT, rope_head_dim=3)
