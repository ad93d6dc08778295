"""Every way to run a step is the same step: loss, gradients and 20 updates against one device, in float32.

Eight virtual CPU devices; the same initial parameters, the same batch. The bars are 1e-5 for the loss, 1e-4 for every
leaf of the gradients and for the losses of 20 steps: differences are relative to the largest magnitude.
"""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.pipeline import layer_order
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload
from jaxplan.workload.step import TrainState, build

BATCH, SEQ, VOCAB, STEPS = 16, 16, 64, 20
DENSE = ModelShape("dense", layers=8, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=VOCAB)
MIXED = dataclasses.replace(DENSE, name="mixed", layers=4, experts=ExpertShape(4, 2, 32))
LED = dataclasses.replace(DENSE, name="led", layers=5, experts=ExpertShape(4, 2, 32, first_dense_layers=1))
SHAPES = {shape.name: shape for shape in (DENSE, MIXED, LED)}
LOSS, GRADIENT, TRAINED = 1e-5, 1e-4, 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A mesh and the decisions beside it."""

    sizes: dict[str, int]
    microbatches: int = 1
    shape: str = "dense"
    remat: str = "full"
    impose: bool = True
    decisions: dict = dataclasses.field(default_factory=dict)

    def __str__(self):
        words = [f"{axis}{size}" for axis, size in self.sizes.items()]
        words += [f"{name}={value}" for name, value in self.decisions.items()]
        return "-".join([self.shape, *words, f"micro{self.microbatches}", self.remat, *["imposed"] * self.impose])

    @functools.cached_property
    def step(self):
        work = Workload(SHAPES[self.shape], BATCH, SEQ, compute_dtype="float32")
        machine, axes = catalogue.machine("2x4", "v5e", None), mesh_axes(self.sizes)
        more = {"loss_chunks": 2, **self.decisions}
        plan = Plan(machine, work, axes, self.remat, self.microbatches, "blockwise", **more)
        devices = np.array(jax.devices()).reshape([axis.size for axis in axes])
        return build(plan, Mesh(devices, [axis.name for axis in axes]), impose=self.impose)

    def stored(self, tree):
        """Leaves of stacked layers in the order in which the plan stores them."""
        repeats = self.decisions.get("repeats", 1)
        order = np.array(layer_order(SHAPES[self.shape].repeated_layers, self.sizes.get("stage", 1), repeats))

        def put(path, leaf):
            return leaf[order] if any(getattr(key, "key", None) == "layers" for key in path) else leaf

        return jax.tree_util.tree_map_with_path(put, tree)


CIRCULAR = {"schedule": "circular", "repeats": 2}
ZERO1, ZERO2 = {"zero1": True}, {"zero1": True, "zero2": True}
HSDP_TENSOR = {"data": 2, "fsdp": 2, "tensor": 2}

COMBINATIONS = [
    Case({"stage": 2, "data": 4}, 2),
    Case({"stage": 4, "data": 2}, 4, remat="none"),
    Case({"stage": 8}, 2),
    Case({"stage": 4, "fsdp": 2}, 8),
    Case({"stage": 4, "fsdp": 2}, 4, decisions=CIRCULAR),
    Case({"stage": 2, "tensor": 2, "fsdp": 2}, 4, remat="mlp"),
    Case({"stage": 2, "fsdp": 4}, 2, remat="offload-dots"),
    Case({"stage": 2, "data": 4}, 2, remat="every-2", decisions=CIRCULAR),
    Case({"stage": 2, "tensor": 2, "data": 2}, 2, remat="none", decisions={"schedule": "circular", "repeats": 4}),
    Case({"stage": 2, "context": 2, "fsdp": 2}, 2),
    Case({"stage": 2, "context": 2, "tensor": 2}, 2, decisions={"context_attention": "ulysses"}),
    Case({"stage": 2, "expert": 2, "fsdp": 2}, 2, "mixed"),
    Case({"stage": 2, "expert": 4}, 2, "mixed", decisions=CIRCULAR),
    Case({"stage": 2, "expert": 2, "data": 2}, 2, "led"),
    Case(HSDP_TENSOR, 4),
    Case(HSDP_TENSOR, 4, remat="none", decisions=ZERO1),
    Case(HSDP_TENSOR, 4, decisions=ZERO2),
    Case({"data": 8}, 2, impose=False),
    Case({"data": 8}, 2, remat="none", decisions=ZERO2),
    Case({"data": 4, "fsdp": 2}, 2, decisions=ZERO1),
    Case({"fsdp": 8}, 2, remat="none"),
    Case({"data": 2, "context": 2, "fsdp": 2}, 2),
    Case({"data": 2, "expert": 2, "fsdp": 2}, 2, "mixed"),
]
TRAINED_TOGETHER = [
    Case({"stage": 4, "fsdp": 2}, 4, decisions=CIRCULAR),
    Case(HSDP_TENSOR, 4, decisions=ZERO1),
    Case({"data": 4, "fsdp": 2}, 2, decisions=ZERO2),
]


def batch(number):
    keys = jax.random.split(jax.random.key(number))
    ids = [jax.random.randint(key, (BATCH, SEQ), 0, VOCAB) for key in keys]
    return {"tokens": ids[0], "targets": ids[1]}


@functools.cache
def alone(shape):
    """The step on one device: no mesh, no microbatches, nothing done again."""
    work = Workload(SHAPES[shape], BATCH, SEQ, compute_dtype="float32")
    return build(Plan(SimpleNamespace(name="one device", devices=1), work, mesh_axes({}), "none", 1, "blockwise"))


@functools.cache
def expected(shape):
    """Parameters, loss and gradients of one device."""
    step = alone(shape)
    params = step.init(jax.random.key(0)).params
    return jax.device_get((params, *jax.jit(step.gradients)(params, batch(1))))


def placed(tree, abstract):
    return jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, abstract)


@pytest.mark.parametrize("case", COMBINATIONS, ids=str)
def test_loss_and_every_gradient(case):
    params, loss, grads = expected(case.shape)
    step = case.step
    held = placed(case.stored(params), step.abstract_state.params)
    got_loss, got = jax.jit(step.gradients)(held, placed(batch(1), step.abstract_batch))
    assert float(got_loss) == pytest.approx(float(loss), rel=LOSS)
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(case.stored(grads)), strict=True)
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


@pytest.mark.parametrize("case", TRAINED_TOGETHER, ids=str)
def test_twenty_updates(case):
    state, wanted = trained(case.shape)
    start = TrainState(*placed(case.stored(state), case.step.abstract_state))
    assert losses(case.step, start) == pytest.approx(wanted, rel=TRAINED)
    assert wanted[-1] != pytest.approx(wanted[0], rel=TRAINED)      # something was learnt
