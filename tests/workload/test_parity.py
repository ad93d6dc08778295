"""Every way to run a step is the same step: loss, gradients and 20 updates against one device, in float32.

Eight virtual CPU devices; the same initial parameters, the same batch. The bars are 1e-5 for the loss, 1e-4 for every
leaf of the gradients and for the losses of 20 steps: differences are relative to the largest magnitude.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.decoder import loss_function
from jaxplan.workload.pipeline import layer_order
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload
from jaxplan.workload.step import TrainState, build

BATCH, SEQ, VOCAB, STEPS = 16, 16, 64, 20
DENSE = ModelShape("dense", layers=8, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=VOCAB)
MIXED = dataclasses.replace(DENSE, name="mixed", layers=4, experts=ExpertShape(4, 2, 32))
SHAPES = {shape.name: shape for shape in (DENSE, MIXED)}
LOSS, GRADIENT, TRAINED = 1e-5, 1e-4, 1e-4


def case(shape="dense", microbatches=1, remat="full", impose=True, **decisions):
    sizes = {name: decisions.pop(name) for name in list(decisions) if isinstance(decisions[name], int)}
    repeats = sizes.pop("repeats", 1)
    flags = {name: bool(sizes.pop(name)) for name in ("zero1", "zero2") if name in sizes}
    return shape, sizes, microbatches, remat, impose, {"repeats": repeats, **flags, **decisions}


COMBINATIONS = [
    case(stage=2, data=4, microbatches=2),
    case(stage=4, data=2, microbatches=4, remat="none"),
    case(stage=8, microbatches=2),
    case(stage=4, fsdp=2, microbatches=8),
    case(stage=4, fsdp=2, microbatches=4, schedule="circular", repeats=2),
    case(stage=2, tensor=2, fsdp=2, microbatches=4, remat="mlp"),
    case(stage=2, tensor=2, data=2, microbatches=2, schedule="circular", repeats=4, remat="none"),
    case(stage=2, context=2, fsdp=2, microbatches=2),
    case(stage=2, context=2, tensor=2, microbatches=2, context_attention="ulysses"),
    case("mixed", stage=2, expert=2, fsdp=2, microbatches=2),
    case("mixed", stage=2, expert=4, microbatches=2, schedule="circular", repeats=2),
    case(data=2, fsdp=2, tensor=2, microbatches=4),
    case(data=8, microbatches=2, impose=False),
    case(data=4, fsdp=2, microbatches=2, zero1=True),
    case(data=2, fsdp=2, tensor=2, microbatches=4, zero1=True, zero2=True),
    case(data=8, microbatches=2, zero1=True, zero2=True, remat="none"),
    case(fsdp=8, microbatches=2, remat="none"),
    case(data=2, context=2, fsdp=2, microbatches=2),
    case("mixed", data=2, expert=2, fsdp=2, microbatches=2),
]
TRAINED_TOGETHER = [
    case(stage=4, fsdp=2, microbatches=4, schedule="circular", repeats=2),
    case(data=2, fsdp=2, tensor=2, microbatches=4, zero1=True),
    case(data=4, fsdp=2, microbatches=2, zero1=True, zero2=True),
]


def label(chosen):
    shape, sizes, microbatches, remat, impose, more = chosen
    words = [shape, *(f"{axis}{size}" for axis, size in sizes.items()), f"micro{microbatches}", remat]
    words += [f"repeats{more['repeats']}"] if more["repeats"] > 1 else []
    return "-".join([*words, *(name for name in ("zero1", "zero2") if more.get(name)), *["imposed"] * impose])


def step_of(chosen):
    shape, sizes, microbatches, remat, impose, more = chosen
    work = Workload(SHAPES[shape], BATCH, SEQ, compute_dtype="float32")
    machine, axes = catalogue.machine("2x4", "v5e", None), mesh_axes(sizes)
    plan = Plan(machine, work, axes, remat, microbatches, "blockwise", loss_chunks=2, **more)
    devices = np.array(jax.devices()).reshape([axis.size for axis in axes])
    return build(plan, Mesh(devices, [axis.name for axis in axes]), impose=impose)


def batch(number):
    keys = jax.random.split(jax.random.key(number))
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, VOCAB) for key in keys]
    return {"tokens": ids[0], "targets": ids[1]}


@functools.cache
def alone(shape):
    """The step on one device: no mesh, no microbatches, nothing done again."""
    work = Workload(SHAPES[shape], BATCH, SEQ, compute_dtype="float32")
    return build(Plan(_One(), work, mesh_axes({}), "none", 1, "blockwise"))


class _One:
    name, devices = "one device", 1


@functools.cache
def expected(shape):
    """Parameters, loss and gradients of one device."""
    model = loss_function(SHAPES[shape], BATCH, SEQ, compute_dtype=jnp.float32)
    params = model.init(jax.random.key(0))
    return jax.device_get((params, *jax.jit(jax.value_and_grad(model.loss))(params, batch(1))))


def stored(tree, chosen):
    """Leaves of stacked layers in the order in which the plan stores them."""
    shape, sizes, *_, more = chosen
    order = np.array(layer_order(SHAPES[shape].layers, sizes.get("stage", 1), more["repeats"]))

    def put(path, leaf):
        return leaf[order] if any(getattr(key, "key", None) == "layers" for key in path) else leaf

    return jax.tree_util.tree_map_with_path(put, tree)


def placed(tree, abstract):
    return jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, abstract)


@pytest.mark.parametrize("chosen", COMBINATIONS, ids=label)
def test_loss_and_every_gradient(chosen):
    params, loss, grads = expected(chosen[0])
    step = step_of(chosen)
    held = placed(stored(params, chosen), step.abstract_state.params)
    got_loss, got = jax.jit(step.gradients)(held, placed(batch(1), step.abstract_batch))
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(stored(grads, chosen)), strict=True)
    for (path, leaf), wanted in pairs:
        assert np.abs(np.asarray(leaf) - wanted).max() <= GRADIENT * np.abs(wanted).max(), path


@functools.cache
def trained(shape):
    """The initial state and the losses of the steps on one device."""
    step = alone(shape)
    state = jax.device_get(step.init(jax.random.key(0)))
    return state, losses(step, jax.tree.map(jnp.asarray, state))


def losses(step, state):
    found = []
    for number in range(STEPS):
        ids = batch(number)
        ids = ids if step.layout is None else placed(ids, step.abstract_batch)
        state, metrics = step.jit(state, ids)
        found.append(float(metrics["loss"]))
    return found


@pytest.mark.parametrize("chosen", TRAINED_TOGETHER, ids=label)
def test_twenty_updates(chosen):
    state, wanted = trained(chosen[0])
    step = step_of(chosen)
    start = TrainState(*placed(stored(state, chosen), step.abstract_state))
    assert losses(step, start) == pytest.approx(wanted, rel=TRAINED)
    assert wanted[-1] != pytest.approx(wanted[0], rel=TRAINED)      # something was learnt
