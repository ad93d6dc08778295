"""Mixtures of experts: every expert on every token written out, and the same step on every mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.experts import balance, gates_of
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload
from jaxplan.workload.step import build

BATCH, SEQ, VOCAB = 8, 16, 64
LOSS, GRADIENT = 1e-5, 1e-4
EXACT = {"compute_dtype": jnp.float32}
PLAIN = ModelShape(
    "plain", layers=2, embed=32, mlp=48, heads=8, kv_heads=4, head_dim=8, vocab=VOCAB,
    experts=ExpertShape(8, 2, 40, aux_coefficient=0.05),
)
# as DeepSeek-V3 has it, and Qwen2's gate on the shared experts
RICH = dataclasses.replace(
    PLAIN,
    name="rich",
    layers=3,
    experts=ExpertShape(
        *(8, 2, 40),
        shared=2,
        shared_mlp=24,
        first_dense_layers=1,
        router_bias=True,
        shared_gate=True,
        scoring="sigmoid",
        scale=2.5,
        choice_groups=4,
        chosen_groups=2,
        aux_coefficient=0.05,
    ),
)
NO_DROPS = 8 / 2        # times the even share: every token at one expert


def batch():
    keys = jax.random.split(jax.random.key(7))
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, VOCAB) for key in keys]
    return {"tokens": ids[0], "targets": ids[1]}


def initial(model):
    """Parameters whose router bias and norms are not all alike."""
    params = model.init(jax.random.key(0))
    bias = params["layers"].get("router_bias")
    if bias is not None:
        params["layers"]["router_bias"] = 0.1 * jax.random.normal(jax.random.key(1), bias.shape)
    return params


def worst(got, expected):
    """The largest relative difference of any leaf; a leaf of zeros must be exactly that."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(g - e).max() / jnp.maximum(jnp.abs(e).max(), 1e-30)) for g, e in pairs)


# ------------------------------------------------------------------------------------------- written out


def plain_mixture(shape, w, x):
    """Every expert on every token, those that are not chosen times zero (arXiv:2401.04088, section 2.1)."""
    e = shape.experts
    logits = x @ w["router"]
    scores = jax.nn.softmax(logits, -1) if e.scoring == "softmax" else 1 / (1 + jnp.exp(-logits))
    merit = scores + w.get("router_bias", 0)
    if e.choice_groups > 1:
        size = e.experts // e.choice_groups
        best = jnp.sort(merit.reshape(*merit.shape[:-1], e.choice_groups, size), -1)[..., -2:].sum(-1)
        least = jnp.sort(best, -1)[..., -e.chosen_groups, None]
        merit = jnp.where(jnp.repeat(best >= least, size, -1), merit, -jnp.inf)
    weight = jnp.where(merit >= jnp.sort(merit, -1)[..., -e.top_k, None], scores, 0)
    fraction = (weight > 0).mean(1) / e.top_k
    share = (scores / scores.sum(-1, keepdims=True)).mean(1)
    weight = e.scale * weight / weight.sum(-1, keepdims=True)
    hidden = jax.nn.silu(jnp.einsum("bsd,def->bsef", x, w["gate"])) * jnp.einsum("bsd,def->bsef", x, w["up"])
    out = jnp.einsum("bsef,def,bse->bsd", hidden, w["down"], weight)
    if e.shared:
        shared = (jax.nn.silu(x @ w["shared_gate"]) * (x @ w["shared_up"])) @ w["shared_down"].T
        out = out + shared / (1 + jnp.exp(-(x @ w["shared_switch"])))[..., None]
    return out, e.experts * (jax.lax.stop_gradient(fraction) * share).sum(-1).mean()


def plain_loss(shape, params, batch):
    def rms(x, scale):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + shape.norm_eps) * scale

    def rope(x):
        half = shape.head_dim // 2
        angle = np.arange(SEQ)[:, None] / shape.rope_theta ** (np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None, :]
        return jnp.concatenate([turned.real, turned.imag], -1)

    def attention(w, h):
        q, k, v = (jnp.tensordot(h, w[n], 1) for n in ("query", "key", "value"))
        q, k, v = rope(q), jnp.repeat(rope(k), 2, 2), jnp.repeat(v, 2, 2)
        scores = jnp.einsum("bqnh,bsnh->bnqs", q, k) / np.sqrt(shape.head_dim)
        scores = jax.nn.softmax(jnp.where(np.tri(SEQ, dtype=bool), scores, -jnp.inf), -1)
        return jnp.einsum("bnqs,bsnh,dnh->bqd", scores, v, w["output"])

    x, unbalanced = params["embedding"][batch["tokens"]], 0.0
    for stack in ("dense_layers", "layers"):
        for layer in range(len(params[stack]["up"]) if stack in params else 0):
            w = {name: value[layer] for name, value in params[stack].items()}
            x = x + attention(w, rms(x, w["attention_norm"]))
            h = rms(x, w["mlp_norm"])
            if stack == "layers":
                out, more = plain_mixture(shape, w, h)
                x, unbalanced = x + out, unbalanced + more
            else:
                x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"].T
    logits = jax.nn.log_softmax(rms(x, params["final_norm"]) @ params["unembed"], -1)
    loss = -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], -1))
    return loss + shape.experts.aux_coefficient * unbalanced


@pytest.mark.parametrize(
    "kernels", [Kernels(capacity_factor=NO_DROPS), Kernels(dispatch="dropless")], ids=lambda k: k.dispatch
)
@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=lambda s: s.name)
def test_loss_and_gradients_are_those_of_a_model_written_out(shape, kernels):
    model = loss_function(shape, BATCH, SEQ, kernels=kernels, **EXACT)
    params = initial(model)
    value, grads = jax.jit(jax.value_and_grad(model.loss))(params, batch())
    expected, expected_grads = jax.jit(jax.value_and_grad(lambda p: plain_loss(shape, p, batch())))(params)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert worst(grads, expected_grads) < 2e-5
    if "router_bias" in grads["layers"]:      # it decides who is chosen, and is not trained by the loss
        assert not np.any(grads["layers"]["router_bias"])
def test_balance_is_one_where_all_experts_are_chosen_alike():
    scores = jnp.full((2, 8, 4), 0.25)
    chosen = jnp.arange(16).reshape(1, 8, 2) % 4 + jnp.zeros((2, 1, 1), int)
    _, picked = gates_of(scores, chosen, ExpertShape(4, 2, 8))
    np.testing.assert_allclose(balance(scores, picked, 2), np.ones((2, 2)), rtol=1e-6)
    # all on the first two of four: f = 1/2 there, P = 1/4: 4 x (1/8 + 1/8)
    _, picked = gates_of(scores, chosen % 2, ExpertShape(4, 2, 8))
    np.testing.assert_allclose(balance(scores, picked, 1), np.ones((2, 1)), rtol=1e-6)
    certain = jax.nn.one_hot(jnp.zeros((1, 8), int), 4)
    _, picked = gates_of(certain, jnp.zeros((1, 8, 1), int), ExpertShape(4, 1, 8))
    np.testing.assert_allclose(balance(certain, picked, 1), [[4.0]], rtol=1e-6)


def plan_of(shape, sizes, remat="full", **decisions):
    work = {key: decisions.pop(key) for key in ("dispatch", "capacity_factor") if key in decisions}
    work = Workload(shape, BATCH, SEQ, compute_dtype="float32", **work)
    machine = catalogue.machine("2x4", "v5e", None)
    return Plan(machine, work, mesh_axes(sizes), remat, 1, "blockwise", loss_chunks=2, **decisions)


@functools.cache
def alone(shape, groups, work):
    """Parameters, loss and gradients of one device whose rows have so many groups of tokens."""
    kernels = Kernels(expert_groups=groups, **dict(work))
    model = loss_function(shape, BATCH, SEQ, kernels=kernels, **EXACT)
    params = initial(model)
    return jax.device_get((params, *jax.jit(jax.value_and_grad(model.loss))(params, batch())))


def sharded(plan, params):
    """Loss and gradients of the plan's step."""
    devices = np.array(jax.devices()).reshape([axis.size for axis in plan.axes])
    step = build(plan, Mesh(devices, [axis.name for axis in plan.axes]))
    held = [
        jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, like)
        for tree, like in ((params, step.abstract_state.params), (batch(), step.abstract_batch))
    ]
    return jax.device_get(jax.jit(step.gradients)(*held))


DROPS = {"capacity_factor": 1.0}
CASES = [
    (PLAIN, {"expert": 8}, "full", DROPS),
    (PLAIN, {"expert": 4, "fsdp": 2}, "none", DROPS),
    (PLAIN, {"expert": 2, "tensor": 2, "fsdp": 2}, "full", DROPS),
    (PLAIN, {"expert": 2, "tensor": 2, "data": 2}, "dots", DROPS | {"sequence_sharding": False}),
    (PLAIN, {"expert": 2, "context": 2, "fsdp": 2}, "full", DROPS),
    (RICH, {"expert": 4, "fsdp": 2}, "full", DROPS),
    (RICH, {"expert": 2, "data": 2, "fsdp": 2}, "none", {"zero1": True}),
    (RICH, {"tensor": 4, "fsdp": 2}, "mlp", DROPS),
    (PLAIN, {"expert": 4, "fsdp": 2}, "none", {"dispatch": "dropless"}),
    (RICH, {"expert": 2, "tensor": 2, "data": 2}, "full", {"dispatch": "dropless"}),
    (PLAIN, {"expert": 2, "context": 2, "fsdp": 2}, "dots", {"dispatch": "dropless", "context_attention": "ulysses"}),
]


def label(value):
    if isinstance(value, dict):
        return "-".join(f"{key}{number}" for key, number in value.items())
    return getattr(value, "name", value)


@pytest.mark.parametrize(("shape", "sizes", "remat", "decisions"), CASES, ids=label)
def test_loss_and_gradients_do_not_depend_on_the_mesh(shape, sizes, remat, decisions):
    plan = plan_of(shape, sizes, remat, **decisions)
    work = {key: decisions[key] for key in ("dispatch", "capacity_factor") if key in decisions}
    params, loss, grads = alone(shape, plan.expert_groups, tuple(work.items()))
    got_loss, got = sharded(plan, params)
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    assert worst(got, grads) <= GRADIENT


def ragged_all_to_all(rows, room, starts, sizes, there, _, *, axis_name):
    """What JAX says of it, of gathered arrays: row `starts[j] + i` of a device goes to `there[j] + i` of device j."""
    me = jax.lax.axis_index(axis_name)
    rows, starts, sizes, there = (jax.lax.all_gather(a, axis_name) for a in (rows, starts, sizes, there))
    for device in range(rows.shape[0]):
        place = jnp.arange(room.shape[0]) - there[device, me]
        source = (starts[device, me] + place).clip(0, rows.shape[1] - 1)
        came = (place >= 0) & (place < sizes[device, me])
        room = jnp.where(came[:, None], rows[device, source], room)
    return room


def test_a_ragged_exchange_is_the_padded_one(monkeypatch):
    """CPUs have no ragged exchange: its arguments, against its definition."""
    params, loss, grads = alone(PLAIN, 1, (("dispatch", "dropless"),))
    monkeypatch.setattr("jaxplan.workload.kernels.rows.lax.ragged_all_to_all", ragged_all_to_all)
    monkeypatch.setattr("jaxplan.workload.kernels.dropless.WITHOUT_RAGGED", ())
    got_loss, got = sharded(plan_of(PLAIN, {"expert": 4, "fsdp": 2}, "full", dispatch="dropless"), params)
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    assert worst(got, grads) <= GRADIENT
