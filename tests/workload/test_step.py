"""The train step: one update whatever the mesh and the microbatches; state stored as the plan says."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxplan.compile.collectives import collectives
from jaxplan.compile.hlo import parse
from jaxplan.errors import InputError
from jaxplan.plan.plan import MeshAxis, Plan, mesh_axes
from jaxplan.workload.optimizer import OPTIMIZERS, optimizer, state_dims
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.step import build
from jaxplan.workload.user import AS_WRITTEN, Reference

PROGRAMS = Path(__file__).parent / "user_programs"
TINY = ModelShape("tiny", layers=2, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)


def plan(sizes=(1, 1, 1), microbatches=1, zero1=False, remat="full", zero2=False, **work):
    axes = tuple(MeshAxis(n, s, n) for n, s in zip(("data", "fsdp", "tensor"), sizes, strict=True))
    machine = SimpleNamespace(devices=int(np.prod(sizes)), name="virtual CPU devices")
    workload = Workload(TINY, 16, 16, compute_dtype="float32", **work)
    return Plan(machine, workload, axes, remat, microbatches, "blockwise", zero1, loss_chunks=2, zero2=zero2)


def mesh(sizes):
    return Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), ("data", "fsdp", "tensor"))


def batch():
    keys = jax.random.split(jax.random.key(3))
    return {
        n: jax.random.randint(k, (16, 16), 0, 64) for n, k in zip(("tokens", "targets"), keys, strict=True)
    }


def two_steps(step):
    """Losses of two steps from one initial state: the second sees the first's update."""
    state, losses = step.init(jax.random.key(0)), []
    for _ in range(2):
        state, metrics = step.jit(state, batch())
        losses.append(float(metrics["loss"]))
    return losses, jax.tree.map(np.asarray, state.params)


@pytest.fixture(scope="module")
def alone():
    return two_steps(build(plan()))


@pytest.mark.parametrize(
    "sizes, microbatches, zero1, impose",
    [
        (None, 4, False, False),
        ((2, 2, 2), 1, True, True),
        ((2, 2, 2), 4, False, True),
        ((1, 8, 1), 2, False, False),
        ((8, 1, 1), 2, True, True),
    ],
)
def test_updates_do_not_depend_on_the_plan(alone, sizes, microbatches, zero1, impose):
    chosen = plan(sizes or (1, 1, 1), microbatches, zero1)
    losses, params = two_steps(build(chosen, mesh(sizes) if sizes else None, impose=impose))
    assert losses == pytest.approx(alone[0], rel=1e-5)
    # Adam's first updates are the gradient's sign times the rate: compare to a hundredth of one update
    for got, expected in zip(jax.tree.leaves(params), jax.tree.leaves(alone[1]), strict=True):
        assert np.mean(np.abs(got - expected)) < 3e-6


def test_state_is_stored_as_the_rules_say():
    step = build(plan((2, 2, 2), zero1=True), mesh((2, 2, 2)), impose=False)
    params, adam = step.abstract_state.params, step.abstract_state.optimizer[0]
    assert params["layers"]["query"].sharding.spec == P(None, "fsdp", "tensor", None)
    assert params["layers"]["down"].sharding.spec == P(None, "fsdp", "tensor")
    assert params["embedding"].sharding.spec == P("tensor", "fsdp")
    assert params["layers"]["mlp_norm"].sharding.spec == P(None, None)
    assert adam.mu["layers"]["query"].sharding.spec == P(None, ("fsdp", "data"), "tensor", None)
    assert adam.count.sharding.spec == P()
    assert step.abstract_batch["tokens"].sharding.spec == P(("data", "fsdp"), None)
    state = step.init(jax.random.key(0))
    assert state.optimizer[0].nu["unembed"].addressable_shards[0].data.shape == (32 // 4, 64 // 2)


def test_state_bytes_are_those_of_the_shards():
    """float32 AdamW: 12 bytes a parameter, over fsdp = 8 devices but for the norms (5 x 32 elements)."""
    step = build(plan((1, 8, 1)), mesh((1, 8, 1)), impose=False)
    count = sum(leaf.size for leaf in jax.tree.leaves(step.abstract_state.params))
    norms = (2 * TINY.layers + 1) * TINY.embed
    arguments = step.lower().compile().memory_analysis().argument_size_in_bytes
    ids = 2 * 16 * 16 * 4 // 8
    assert arguments == 12 * (count - norms) // 8 + 12 * norms + ids + 4  # 4: Adam's step counter


def test_state_is_donated():
    step = build(plan((1, 8, 1)), mesh((1, 8, 1)), impose=False)
    analysis = step.lower().compile().memory_analysis()
    state = sum(
        leaf.sharding.shard_shape(leaf.shape) != ()
        and 4 * int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
        for leaf in jax.tree.leaves(step.abstract_state)
    )
    assert analysis.alias_size_in_bytes >= state


def over_data(step, sizes):
    """Collectives of the compiled gradients along `data`, by kind: (executions, elements) of each."""
    state = step.abstract_state.params, step.abstract_batch
    module = parse(jax.jit(step.gradients).lower(*state).compile().as_text())
    axes = dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
    found = {}
    for one in collectives(module, axes):
        if "data" in one.axes:
            found.setdefault(one.kind, []).append((one.executions, one.nbytes // 4))
    return found


def shard(step):
    """Elements of one device's shards of the parameters."""
    leaves = jax.tree.leaves(step.abstract_state.params)
    return sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) for leaf in leaves)


def test_gradients_are_reduced_over_data_once_a_step():
    """Four microbatches of two layers, one all-reduce of every gradient and of the loss, in no loop."""
    step = build(plan((2, 2, 2), microbatches=4), mesh((2, 2, 2)))
    found = over_data(step, (2, 2, 2))
    assert list(found) == ["all-reduce"]
    assert {executions for executions, _ in found["all-reduce"]} == {1}
    assert sum(elements for _, elements in found["all-reduce"]) == shard(step) + 1


def test_a_replica_gathers_a_sequence_as_often_as_all_of_them_together():
    """Inside of the loop over microbatches: per layer twice forward, twice again, twice for what comes back."""
    step = build(plan((2, 2, 2), microbatches=4), mesh((2, 2, 2)))
    state = step.abstract_state.params, step.abstract_batch
    module = parse(jax.jit(step.gradients).lower(*state).compile().as_text())
    stream = 16 // (4 * 2 * 2) * 16 * TINY.embed * 4      # bytes of a device's rows with their whole sequence
    gathers = [
        one.executions
        for one in collectives(module, {"data": 2, "fsdp": 2, "tensor": 2})
        if (one.kind, one.axes, one.nbytes) == ("all-gather", ("tensor",), stream)
    ]
    around = 4 * 2      # of the loss and of the lookup, a microbatch
    assert sum(gathers) == 4 * TINY.layers * 6 + around


def test_gradients_are_scattered_over_data_once_a_step_where_the_optimizer_is():
    step = build(plan((4, 2, 1), microbatches=2, zero1=True), mesh((4, 2, 1)))
    found = over_data(step, (4, 2, 1))
    norms = (2 * TINY.layers + 1) * TINY.embed
    assert set(found) == {"all-reduce", "reduce-scatter"}
    assert {executions for kind in found.values() for executions, _ in kind} == {1}
    assert sum(elements for _, elements in found["all-reduce"]) == norms + 1
    assert sum(elements for _, elements in found["reduce-scatter"]) == shard(step) - norms


def test_gradients_lie_over_data_under_zero2():
    """No more of them on a device than of the optimizer's state, whatever the microbatches."""
    step = build(plan((2, 2, 2), microbatches=4, zero1=True, zero2=True), mesh((2, 2, 2)))
    state = step.abstract_state.params, step.abstract_batch
    kept = jax.jit(step.gradients).lower(*state).compile().output_shardings[1]
    moments = step.abstract_state.optimizer[0].mu
    for got, wanted in zip(jax.tree.leaves(kept), jax.tree.leaves(moments), strict=True):
        assert got.is_equivalent_to(wanted.sharding, len(wanted.shape))
    assert kept["layers"]["query"].spec == P(None, ("fsdp", "data"), "tensor")


def test_users_programs_over_replicas_and_microbatches():
    """A user's language model over replicas and microbatches, against one device."""
    reference = Reference.parse(f"{PROGRAMS}/linen_lm.py:program")
    work = Workload(None, 16, 32, reference=str(reference), program_hash=reference.digest())
    plans = [
        Plan(SimpleNamespace(devices=d, name="CPU"), work, mesh_axes(sizes), AS_WRITTEN, count, AS_WRITTEN)
        for d, sizes, count in ((1, {}, 1), (8, {"data": 4, "fsdp": 2}, 2))
    ]
    alone, step = build(plans[0]), build(plans[1], mesh((4, 2, 1)))
    keys = iter(jax.random.split(jax.random.key(0), 64))
    params = jax.tree.map(lambda p: 0.1 * jax.random.normal(next(keys), p.shape), alone.abstract_state.params)
    ids = {n: jax.random.randint(jax.random.key(1), leaf.shape, 0, 16) for n, leaf in alone.abstract_batch.items()}
    loss, grads = jax.jit(alone.gradients)(params, ids)
    abstract = (step.abstract_state.params, step.abstract_batch)
    held = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), (params, ids), abstract)
    got_loss, got = jax.jit(step.gradients)(*held)
    assert float(got_loss) == pytest.approx(float(loss), rel=1e-5)
    # a leaf that is rounding alone (softmax does not see a key's bias) is compared at 1e-3 of the largest
    floor = 1e-3 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    for leaf, wanted in zip(jax.tree.leaves(got), jax.tree.leaves(grads), strict=True):
        assert np.abs(np.asarray(leaf) - np.asarray(wanted)).max() <= 1e-4 * max(np.abs(wanted).max(), floor)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_has_the_dims_of_its_parameters(name):
    params = {
        "w": jax.ShapeDtypeStruct((256, 512), jnp.float32),
        "b": jax.ShapeDtypeStruct((512,), jnp.float32),
    }
    dims = {"w": ("embed", "mlp"), "b": ("mlp",)}
    transform = optimizer(name)
    leaves = jax.tree.leaves(jax.eval_shape(transform.init, params))
    sizes = {"embed": 256, "mlp": 512}
    named = state_dims(transform, params, dims)
    assert len(named) == len(leaves)
    for leaf, names in zip(leaves, named, strict=True):
        assert len(names) == len(leaf.shape)
        assert all(sizes[n] == s for n, s in zip(names, leaf.shape, strict=True) if n is not None)
    whole = sum(names == ("embed", "mlp") for names in named)
    assert whole == {"adamw": 2, "adamw_bf16": 2, "lion": 1, "muon": 1, "momentum": 1}.get(name, 0)


def test_second_moment_of_adafactor_is_factored():
    params = {"w": jax.ShapeDtypeStruct((256, 512), jnp.float32)}
    named = state_dims(optimizer("adafactor"), params, {"w": ("embed", "mlp")})
    assert ("embed",) in named and ("mlp",) in named


def test_optimizer_is_optax():
    params = {"w": jnp.ones(4)}
    transform = optimizer("adamw", 0.1)
    updates, _ = transform.update({"w": jnp.ones(4)}, transform.init(params), params)
    # first step: -rate x (sign(g) + decay x p) (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2)
    assert optax.apply_updates(params, updates)["w"] == pytest.approx(np.full(4, 1 - 0.1 * 1.1), rel=1e-5)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="optimizer 'best'"):
        build(plan(optimizer="best"))
    with pytest.raises(ValueError, match="is not the plan's"):
        build(plan((2, 2, 2)), mesh((1, 8, 1)))
