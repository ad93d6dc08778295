"""Mixtures of experts: every expert on every token written out, the same step on every mesh, what it costs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.estimate.communication import traffic
from jaxplan.estimate.terms import rows
from jaxplan.estimate.view import View
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.remat import POLICIES
from jaxplan.plan.sharding import AXES, standard_rules
from jaxplan.workload.cut import policy_cut
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.experts import balance, gates_of
from jaxplan.workload.kernels.dispatch import Exchange
from jaxplan.workload.kernels.routing import chosen_by
from jaxplan.workload.parameters import parameter_count
from jaxplan.workload.program import trace
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


def test_chosen_experts_are_the_best_of_the_best_groups():
    shape = ExpertShape(16, 3, 8, choice_groups=4, chosen_groups=2)
    scores = np.asarray(jax.random.normal(jax.random.key(0), (50, 16)))
    for row, chosen in zip(scores, np.asarray(chosen_by(jnp.asarray(scores), shape)), strict=True):
        merit = [sum(sorted(row[4 * g : 4 * g + 4])[-2:]) for g in range(4)]
        among = [e for e in range(16) if e // 4 in np.argsort(merit)[-2:]]
        assert list(chosen) == sorted(among, key=lambda e: -row[e])[:3]


@pytest.mark.parametrize("groups", [1, 2])
def test_first_choices_are_served_first(groups):
    """Queues filled by hand, one an expert and group of tokens: by rank, then by position."""
    shape = ExpertShape(4, 2, 8)
    exchange = Exchange(shape, groups, capacity_factor=1.0)
    scores = jax.random.normal(jax.random.key(3), (3, 12, 4))
    routes = exchange.route(scores)
    tokens = 12 // groups
    slots = tokens * 2 // 4
    assert exchange.capacity(tokens) == slots
    expected = np.full((1, 3, groups, 4, slots), -1)
    answers = np.full((3, 12, 2), -1)
    for row, group in np.ndindex(3, groups):
        used = [0] * 4
        for rank, token in np.ndindex(2, tokens):
            place = group * tokens + token
            expert = int(routes.experts[row, place, rank])
            if used[expert] < slots:
                at = (0, row, group, expert, used[expert])
                expected[at] = (row * 12 + place) * 2 + rank
                answers[row, place, rank] = np.ravel_multi_index(at, expected.shape)
            used[expert] += 1
    assert (np.asarray(routes.sources) == expected).all() and (np.asarray(routes.slots) == answers).all()
    assert (answers < 0).any()


def test_dispatch_and_combine_are_transposes():
    """<dispatch(x), y> = <x, dispatch^T(y)>, and combine with gates of one is that transpose."""
    exchange = Exchange(ExpertShape(4, 2, 8), 1, capacity_factor=1.0)
    routes = exchange.route(jax.random.normal(jax.random.key(3), (2, 8, 4)))
    x, y = jax.random.normal(jax.random.key(0), (2, 8, 5)), jax.random.normal(jax.random.key(1), (2, 1, 4, 4, 5))
    sent, pull = jax.vjp(lambda x: exchange.dispatch(x, routes), x)
    back = exchange.combine(y, jnp.ones((2, 8, 2)), routes)
    np.testing.assert_allclose(pull(y)[0], back, rtol=1e-6)
    assert jnp.vdot(sent, y) == pytest.approx(float(jnp.vdot(x, back)), rel=1e-5)


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


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3"])
def test_parameters_are_counted_to_the_last_one(name):
    shape = catalogue.model(name)
    model = loss_function(shape, 1, 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == parameter_count(shape)
    assert ("dense_layers" in model.params) == (name == "deepseek-v3")


def test_groups_must_be_whole():
    with pytest.raises(InputError, match="16 tokens of a row in 3 groups"):
        jax.eval_shape(Exchange(PLAIN.experts, 3).route, jnp.zeros((2, 16, 8)))


# --------------------------------------------------------------------------------------- on every mesh


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


DROPS = {"capacity_factor": 1.0}
CASES = [
    (PLAIN, {"expert": 8}, "full", DROPS),
    (PLAIN, {"expert": 4, "fsdp": 2}, "none", DROPS),
    (PLAIN, {"expert": 2, "tensor": 2, "fsdp": 2}, "full", DROPS),
    (PLAIN, {"expert": 2, "tensor": 2, "data": 2}, "dots", DROPS | {"sequence_sharding": False}),
    (PLAIN, {"expert": 2, "context": 2, "fsdp": 2}, "full", DROPS | {"context_attention": "ulysses"}),
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
    params, loss, grads = alone(shape, plan.sequence_shards, tuple(work.items()))
    devices = np.array(jax.devices()).reshape([axis.size for axis in plan.axes])
    step = build(plan, Mesh(devices, [axis.name for axis in plan.axes]))
    held = [
        jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, like)
        for tree, like in ((params, step.abstract_state.params), (batch(), step.abstract_batch))
    ]
    got_loss, got = jax.jit(step.gradients)(*held)
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    assert worst(jax.device_get(got), grads) <= GRADIENT


# ---------------------------------------------------------------------------------------- what it costs


def calls(jaxpr, times=1):
    """How often each kernel is executed in a jaxpr, loops counted by their length."""
    total = {}
    for equation in jaxpr.eqns:
        name = equation.params.get("name", "")
        if isinstance(name, str) and name.startswith("jaxplan_"):
            found = {name.removeprefix("jaxplan_"): times if equation.invars else 0}
        else:
            inner = times * equation.params["length"] if equation.primitive.name == "scan" else times
            bodies = [getattr(value, "jaxpr", value) for value in equation.params.values()]
            found = {}
            for body in bodies:
                for key, count in calls(body, inner).items() if hasattr(body, "eqns") else ():
                    found[key] = found.get(key, 0) + count
        for key, count in found.items():
            total[key] = total.get(key, 0) + count
    return total


@pytest.mark.parametrize(
    ("policy", "forward"), [("none", 1), ("dots", 1), ("mlp", 2), ("full", 2), ("every-2", 2), ("nested-4", 3)]
)
def test_policies_run_the_exchange_again_but_never_the_router(policy, forward):
    deep = dataclasses.replace(PLAIN, layers=4)
    model = loss_function(deep, BATCH, SEQ, remat=policy, **EXACT)
    found = calls(jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch).jaxpr)
    assert found["route"] == found["dispatch_backward"] == found["combine_backward"] == 4
    assert found["dispatch_forward"] == found["combine_forward"] == 4 * forward


def test_without_a_capacity_the_forward_kernel_never_runs_twice():
    model = loss_function(PLAIN, BATCH, SEQ, remat="full", kernels=Kernels(dispatch="dropless"), **EXACT)
    found = calls(jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch).jaxpr)
    assert found["choose"] == found["gated_experts_forward"] == found["gated_experts_backward"] == PLAIN.layers


@functools.cache
def table_of(shape, **kernels):
    model = loss_function(shape, BATCH, SEQ, kernels=Kernels(**kernels))
    return trace(model.loss, model.params, model.batch, model.parameter_dims, model.batch_dims)


def test_the_table_names_every_dim():
    table = table_of(RICH)
    assert not table.uncovered
    values = {name: [v for v in table.values if v.tag == name] for name in ("dispatched", "mlp_up", "route")}
    named = {tuple(table.dims[d].name for d in v.dims) for v in values["dispatched"]}
    assert named == {("batch", "expert", "slot", "embed")}
    hidden = {tuple(sorted(table.dims[d].name for d in v.dims)) for v in values["mlp_up"]}
    assert hidden == {("batch", "expert", "mlp", "slot"), ("batch", "mlp", "seq")}   # routed; shared and dense
    kinds = {op.kind for op in table.operations if op.primitive == "jaxplan_dispatch_forward"}
    assert kinds == {"lookup"} and values["route"]


@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=lambda s: s.name)
@pytest.mark.parametrize(
    "kernels", [{"capacity_factor": 1.25}, {"capacity_factor": 1.0}, {"dispatch": "dropless"}], ids=str
)
def test_work_of_the_experts(shape, kernels):
    """3 x 2 B S k D F a layer, times the capacity factor: 16 tokens x 2 / 8 experts = 4, or 5, slots an expert."""
    table, e = table_of(shape, **kernels), shape.experts
    assert not table.uncovered

    def flops(phase):
        return sum(
            op.flops * op.times
            for op in table.operations
            if op.kind == "matmul" and op.phase == phase and "expert" in {table.dims[d].name for d in op.dims}
        )

    once = shape.repeated_layers * 3 * 2 * BATCH * SEQ * e.top_k * shape.embed * e.mlp
    factor = kernels.get("capacity_factor", 1.0)
    assert flops("forward") == pytest.approx(factor * once)
    again = 1 if "dispatch" in kernels else 0       # the dropless kernel computes everything once more
    assert flops("backward") == pytest.approx((2 + again) * factor * once)


def exchanged(table, policy, of):
    """{axes: (bytes, executions)} of all-to-alls inside of the layers, on a mesh of these sizes."""
    view = View(table, standard_rules(True, False, experts=True), policy_cut(table, POLICIES[policy]))
    at = rows([[of.get(axis, 1) for axis in AXES]], [1], [1])
    found = {}
    for entry in traffic(view):
        axes = tuple(axis for axis in entry.axes if of.get(axis, 1) > 1)
        if entry.kind == "all-to-all" and axes == ("expert",):
            nbytes, count = found.get(axes, (0.0, 0.0))
            found[axes] = nbytes + float(entry.nbytes.at(at)[0]), count + float(entry.executions.at(at)[0])
    return found


@pytest.mark.parametrize("of", [{"expert": 4, "fsdp": 2}, {"expert": 2, "context": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize(("policy", "times"), [("none", 4), ("dots", 4), ("full", 6)])
def test_traffic_of_experts(policy, times, of):
    """Two all-to-alls forward and two backward a layer, each the slots of a device: B E C D in bfloat16 over 8."""
    found = exchanged(table_of(PLAIN, capacity_factor=1.0), policy, of)
    slots = BATCH * 8 * 4 * PLAIN.embed * 2 / 8
    assert found == {("expert",): (pytest.approx(PLAIN.layers * times * slots), PLAIN.layers * times)}


def test_traffic_without_a_capacity():
    """Two forward and four backward; with tensor axes each of them exchanges all tokens of its rows."""
    table, rows_of_one = table_of(PLAIN, dispatch="dropless"), BATCH * SEQ * 2 * PLAIN.embed * 2
    for of, shards in (({"expert": 4, "fsdp": 2}, 8), ({"expert": 2, "context": 2, "tensor": 2}, 4)):
        found = exchanged(table, "full", of)
        assert found == {("expert",): (pytest.approx(PLAIN.layers * 6 * rows_of_one / shards), PLAIN.layers * 6)}
