"""The optimizer's state in the host's memory: the same updates, and the state lies there between them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.host import DEVICE, HOST, offloaded, on_host
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.step import TrainStep, build

TINY = ModelShape("tiny", layers=2, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
SIZES = {"data": 2, "fsdp": 2, "tensor": 2}


def step(optimizer: str, offload: bool) -> TrainStep:
    machine = SimpleNamespace(devices=8, name="virtual CPU devices")
    work = Workload(TINY, 8, 16, optimizer=optimizer, compute_dtype="float32")
    chosen = Plan(machine, work, mesh_axes(SIZES), "full", 2, "blockwise", zero1=True, offload_optimizer=offload)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), tuple(SIZES))
    return build(chosen, mesh)


def three_losses(made: TrainStep) -> tuple[list[float], object]:
    ids = jax.random.randint(jax.random.key(1), (8, 16), 0, 64)
    state, losses = made.init(jax.random.key(0)), []
    for _ in range(3):
        state, metrics = made.jit(state, {"tokens": ids, "targets": ids})
        losses.append(float(metrics["loss"]))
    return losses, state


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_updates_are_the_same_and_the_state_lies_on_the_host(optimizer) -> None:
    expected, _ = three_losses(step(optimizer, offload=False))
    losses, state = three_losses(step(optimizer, offload=True))
    assert losses == pytest.approx(expected, rel=1e-6)
    kinds = {(bool(leaf.ndim), leaf.sharding.memory_kind) for leaf in jax.tree.leaves(state.optimizer)}
    assert kinds == {(True, HOST), (False, DEVICE)}
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.params)} == {DEVICE}


def test_without_a_mesh_the_state_stays() -> None:
    machine = SimpleNamespace(devices=1, name="one device")
    work = Workload(TINY, 8, 16, compute_dtype="float32")
    made = build(Plan(machine, work, mesh_axes({}), "full", 1, "blockwise", offload_optimizer=True))
    _, state = three_losses(made)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.optimizer)} == {DEVICE}


def test_arrays_move_and_counts_stay() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P())
    like = {"count": jax.ShapeDtypeStruct((), jnp.int32), "mu": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
    found = on_host({"count": sharding, "mu": sharding}, like)
    assert (found["count"].memory_kind, found["mu"].memory_kind) == (sharding.memory_kind, HOST)


def test_the_state_is_fetched_and_put_back_around_the_update() -> None:
    """In the program: one transfer in and one out for each array with dims."""
    transform = offloaded(optax.adam(0.1))
    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
    state = transform.init(params)
    text = str(jax.make_jaxpr(transform.update)(params, state, params))
    assert text.count("device_put") == 2 * 2 * 2       # two moments of two arrays, two ways
