"""Muon's update with whole layers on each device: the same update, moved by exchanges and never gathered."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.spread import route
from jaxplan.workload.step import build

TINY = ModelShape("tiny", layers=8, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)


def mesh(**sizes: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(*sizes.values()), tuple(sizes))


ALL = ("fsdp", "tensor", "data")


@pytest.mark.parametrize(
    "names, shape, spec, expected",
    [
        # each axis of a side goes to the layers, then the idle one takes its part
        (
            ("layers", "embed", "mlp"), (8, 32, 64), P(None, "fsdp", "tensor"),
            [P(None, "fsdp", "tensor"), P("fsdp", None, "tensor"), P(("fsdp", "tensor")), P(ALL)],
        ),
        # six layers: two axes fit, over the third the side is gathered
        (
            ("layers", "embed", "mlp"), (6, 32, 64), P(None, "fsdp", "tensor"),
            [P(None, "fsdp", "tensor"), P("fsdp", None, "tensor"), P("fsdp")],
        ),
        # stages hold layers already: what is left is divided
        (("layers", "embed", "mlp"), (4, 32, 64), P("data", "fsdp"), [P("data", "fsdp"), P(("data", "fsdp"))]),
        (("layers", "expert", "embed", "mlp"), (2, 8, 32, 64), P(None, "tensor", "fsdp"),
         [P(None, "tensor", "fsdp"), P("fsdp", "tensor")]),
        (("vocab", "embed"), (64, 32), P("tensor", "fsdp"), [P("tensor", "fsdp")]),
        (("layers", "embed"), (8, 32), P(), [P()]),
    ],
)  # fmt: skip
def test_axes_move_from_sides_to_layers(names, shape, spec, expected) -> None:
    def same(spec: P) -> list:
        full = [*spec, *[None] * (len(shape) - len(spec))]
        return [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in full]

    found = route(names, shape, spec, mesh(data=2, fsdp=2, tensor=2))
    assert [same(stop) for stop in found] == [same(stop) for stop in expected]


def step(sizes: dict[str, int], **more):
    machine = SimpleNamespace(devices=int(np.prod([*sizes.values()])), name="virtual CPU devices")
    work = Workload(TINY, 8, 16, optimizer="muon", compute_dtype="float32")
    plan = Plan(machine, work, mesh_axes(sizes), "full", 1, "blockwise", **more)
    on = Mesh(np.array(jax.devices()[: machine.devices]).reshape([*plan.sizes.values()]), tuple(plan.sizes))
    return build(plan, on if machine.devices > 1 else None)


def three_losses(made) -> list[float]:
    ids = jax.random.randint(jax.random.key(1), (8, 16), 0, 64)
    state, losses = made.init(jax.random.key(0)), []
    for _ in range(3):
        state, metrics = made.jit(state, {"tokens": ids, "targets": ids})
        losses.append(float(metrics["loss"]))
    return losses


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return three_losses(step({}))


@pytest.mark.parametrize("sizes, more", [
    ({"data": 2, "fsdp": 2, "tensor": 2}, {"zero1": True}),
    ({"fsdp": 8}, {"offload_optimizer": True}),
])  # fmt: skip
def test_updates_do_not_depend_on_the_mesh(alone, sizes, more) -> None:
    assert three_losses(step(sizes, **more)) == pytest.approx(alone, rel=1e-5)
    assert alone[2] < alone[1] < alone[0]


def test_matrices_are_exchanged_and_not_gathered() -> None:
    """Of seven matrices gradient, moment, parameter there, update and moment back; XLA joins some of them."""
    made = step({"fsdp": 8})
    text = made.jit.lower(made.abstract_state, made.abstract_batch).compile().as_text()
    late = [line for line in text.splitlines() if "all-to-all(" in line or "all-gather(" in line]
    whole = re.compile(r"f32\[8,32,(64|8,8|4,8)\]")     # a stack of whole matrices
    assert sum("all-to-all(" in line for line in late) >= 7
    assert not [line for line in late if "all-gather(" in line and whole.search(line.split("(")[0])]
