"""The reference decoder: published sizes, and one loss whatever the mesh, the policy or the microbatches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.decoder import Decoder, Kernels, dim_sizes, loss_function
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims
from jaxplan.workload.shape import ModelShape

TINY = ModelShape("tiny", layers=2, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
OLD = dataclasses.replace(
    TINY,
    name="old",
    norm="layernorm",
    positions="learned",
    max_positions=32,
    activation="gelu",
    tied_embeddings=True,
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
)
RICH = dataclasses.replace(TINY, name="rich", activation="geglu", qk_norm=True, post_norms=True)
EXACT = {"compute_dtype": jnp.float32}
BATCH, SEQ = 8, 16

# exact counts of the safetensors indices on Hugging Face: `meta-llama/Meta-Llama-3-8B`, `Llama-2-7b`,
# `Llama-3.2-1B`, `openai-community/gpt2` (without its causal-mask buffers)
PUBLISHED = [
    (ModelShape("llama3-8b", 32, 4096, 14336, 32, 8, 128, 128256), 8_030_261_248),
    (ModelShape("llama2-7b", 32, 4096, 11008, 32, 32, 128, 32000), 6_738_415_616),
    (ModelShape("llama3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, tied_embeddings=True), 1_235_814_400),
    (
        dataclasses.replace(
            OLD,
            name="gpt2",
            layers=12,
            embed=768,
            mlp=3072,
            heads=12,
            kv_heads=12,
            head_dim=64,
            vocab=50257,
            max_positions=1024,
        ),
        124_439_808,
    ),
]


def batch(vocab=64):
    keys = jax.random.split(jax.random.key(7))
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, vocab) for key in keys]
    return {"tokens": ids[0], "targets": ids[1]}


def relative(got, expected):
    """Largest difference of any leaf, relative to that leaf's largest magnitude.

    A leaf that is rounding alone (softmax does not see a key's bias) is compared at 1e-3 of the largest.
    """
    pairs = [
        (np.asarray(g), np.asarray(e)) for g, e in zip(*map(jax.tree.leaves, (got, expected)), strict=True)
    ]
    floor = 1e-3 * max(np.abs(e).max() for _, e in pairs)
    return max(float(np.abs(g - e).max() / max(np.abs(e).max(), floor)) for g, e in pairs)


@pytest.mark.parametrize("shape, count", PUBLISHED, ids=lambda x: getattr(x, "name", ""))
def test_parameter_counts_are_the_published_ones(shape, count):
    model = loss_function(shape, 1, 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == count


@pytest.mark.parametrize("shape", [TINY, OLD, RICH], ids=lambda s: s.name)
def test_dims_name_every_parameter(shape):
    model = loss_function(shape, BATCH, SEQ)
    sizes = dim_sizes(shape)
    for leaf, names in zip(
        jax.tree.leaves(model.params), leaf_dims(model.params, model.parameter_dims), strict=True
    ):
        assert leaf.shape == tuple(sizes[name] for name in names)


def plain_loss(shape, params, batch):
    """Llama written out: no scan, no kernel, no cast (Touvron et al. 2023, arXiv:2302.13971, section 2.2)."""

    def rms(x, scale):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + shape.norm_eps) * scale

    def rope(x):
        angle = np.arange(SEQ)[:, None] / shape.rope_theta ** (
            np.arange(0, shape.head_dim, 2) / shape.head_dim
        )
        pair = x[..., : shape.head_dim // 2] + 1j * x[..., shape.head_dim // 2 :]
        turned = pair * np.exp(1j * angle)[:, None, :]
        return jnp.concatenate([turned.real, turned.imag], -1)

    x = params["embedding"][batch["tokens"]]
    for layer in range(shape.layers):
        w = {name: value[layer] for name, value in params["layers"].items()}
        h = rms(x, w["attention_norm"])
        q, k, v = (jnp.tensordot(h, w[n], 1) for n in ("query", "key", "value"))
        q, k, v = rope(q), jnp.repeat(rope(k), 2, 2), jnp.repeat(v, 2, 2)
        scores = jnp.einsum("bqnh,bsnh->bnqs", q, k) / np.sqrt(shape.head_dim)
        scores = jax.nn.softmax(jnp.where(np.tri(SEQ, dtype=bool), scores, -jnp.inf), -1)
        x = x + jnp.einsum("bnqs,bsnh,dnh->bqd", scores, v, w["output"])
        h = rms(x, w["mlp_norm"])
        x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"].T
    logits = jax.nn.log_softmax(rms(x, params["final_norm"]) @ params["unembed"], -1)
    return -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], -1))


def test_loss_and_gradients_are_those_of_a_model_written_out():
    model = loss_function(TINY, BATCH, SEQ, **EXACT)
    params = model.init(jax.random.key(0))
    value, grads = jax.jit(jax.value_and_grad(model.loss))(params, batch())
    expected, expected_grads = jax.value_and_grad(lambda p: plain_loss(TINY, p, batch()))(params)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert relative(grads, expected_grads) < 1e-5


@pytest.mark.parametrize(
    "shape, sizes, sequence_sharding",
    [(TINY, (2, 2, 2), True), (TINY, (1, 8, 1), True), (OLD, (2, 2, 2), False), (RICH, (2, 1, 4), True)],
)
def test_loss_does_not_depend_on_the_mesh(shape, sizes, sequence_sharding):
    alone = loss_function(shape, BATCH, SEQ, **EXACT)
    params = alone.init(jax.random.key(0))
    expected = jax.jit(jax.value_and_grad(alone.loss))(params, batch())
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), ("data", "fsdp", "tensor"))
    layout = Layout(mesh, standard_rules(sequence_sharding, False))
    model = loss_function(shape, BATCH, SEQ, kernels=Kernels("blockwise", 2, layout), remat="full", **EXACT)
    specs = [layout.sharding(layout.parameter_spec(n)) for n in leaf_dims(params, model.parameter_dims)]
    stored = jax.device_put(params, jax.tree.structure(params).unflatten(specs))
    value, grads = jax.jit(jax.value_and_grad(model.loss))(stored, batch())
    assert float(value) == pytest.approx(float(expected[0]), rel=1e-5)
    assert relative(grads, expected[1]) < 1e-4


def test_module_bears_the_names_of_its_dims():
    model = nnx.eval_shape(lambda: Decoder(TINY, rngs=nnx.Rngs(0)))
    assert model.layers.query.get_metadata()["out_sharding"] == ("layers", "embed", "heads", "head_dim")
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    assert state["embedding"].shape == (64, 32)


def test_module_runs():
    model = Decoder(TINY, rngs=nnx.Rngs(0))
    ids = batch()
    assert model(ids["tokens"]).shape == (BATCH, SEQ, TINY.embed)
    # an untrained model knows nothing: about the logarithm of the vocabulary
    assert float(model.loss(ids["tokens"], ids["targets"])) == pytest.approx(np.log(64), rel=0.25)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="remat policy 'some'"):
        loss_function(TINY, BATCH, SEQ, remat="some")
    with pytest.raises(InputError, match="at most 32"):
        loss_function(OLD, BATCH, 64)


def test_weights_are_gathered_to_compute_and_never_kept():
    """fsdp 8, nothing rematerialized: no stack of whole weights among what the forward pass keeps."""
    wide = dataclasses.replace(TINY, name="wide", embed=128, mlp=512)
    layout = Layout(
        Mesh(np.array(jax.devices()).reshape(1, 8, 1), ("data", "fsdp", "tensor")),
        standard_rules(True, False),
    )
    model = loss_function(wide, BATCH, SEQ, kernels=Kernels("blockwise", 1, layout), remat="none")
    names = leaf_dims(model.params, model.parameter_dims)
    specs = [layout.sharding(layout.parameter_spec(n)) for n in names]
    stored = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        model.params,
        jax.tree.structure(model.params).unflatten(specs),
    )
    ids = jax.ShapeDtypeStruct(
        (BATCH, SEQ), jnp.int32, sharding=layout.sharding(layout.spec(("batch", None)))
    )
    text = jax.jit(jax.grad(model.loss)).lower(stored, {"tokens": ids, "targets": ids}).compile().as_text()
    assert "[128,512]" in text  # gathered for one layer
    assert "[2,128,512]" not in text  # never for all
