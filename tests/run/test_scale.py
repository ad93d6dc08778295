"""Plans cut to fewer devices: the same roles, divisibility kept, as much work a device; and what is said of it."""

import dataclasses
import math

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import STORED_OVER
from jaxplan.run.attached import Attached
from jaxplan.run.axes import KEPT_FIRST, axis_sizes
from jaxplan.run.scale import (
    PARITY_STEP_FLOPS,
    VIRTUAL_STEP_FLOPS,
    affordable,
    parity_plan,
    scaled,
    step_flops,
)
from jaxplan.workload.shape import Workload
from jaxplan.workload.user import AS_WRITTEN

CPU = Attached("cpu", "cpu", 8)
V5E = catalogue.machine("8x16", "v5e")
H100 = catalogue.machine("16x8", "h100")
CIRCULAR = {"schedule": "circular", "repeats": 2}
ZERO1, ZERO2 = {"zero1": True}, {"zero1": True, "zero2": True}


def plan(sizes, model="llama3-8b", machine=V5E, batch=512, seq=8192, micro=4, remat="full", **decisions):
    work = Workload(catalogue.model(model), batch, seq)
    decisions = {"attention": "splash", **decisions}
    return Plan(machine, work, mesh_axes(sizes), remat, micro, **decisions)


PLANS = {
    "fsdp": plan({"fsdp": 128}),
    "data": plan({"data": 128}),
    "hsdp": plan({"data": 2, "fsdp": 64}, **ZERO1),
    "zero2": plan({"data": 16, "fsdp": 8}, **ZERO2),
    "tensor": plan({"data": 16, "tensor": 8}),
    "whole sequence": plan({"data": 16, "tensor": 8}, sequence_sharding=False),
    "three": plan({"data": 4, "fsdp": 4, "tensor": 8}),
    "ring": plan({"fsdp": 16, "context": 8}, micro=1),
    "ulysses": plan({"fsdp": 16, "context": 8}, micro=1, context_attention="ulysses"),
    "context tensor": plan({"fsdp": 8, "context": 4, "tensor": 4}, micro=1),
    "stage": plan({"stage": 4, "fsdp": 32}, micro=8),
    "circular": plan({"stage": 4, "fsdp": 32}, micro=8, **CIRCULAR),
    "stage tensor": plan({"stage": 8, "fsdp": 2, "tensor": 8}, micro=16),
    "stage context": plan({"stage": 2, "fsdp": 16, "context": 4}, micro=4),
    "expert": plan({"data": 4, "fsdp": 4, "expert": 8}, "mixtral-8x7b"),
    "expert context": plan({"fsdp": 8, "expert": 8, "context": 2}, "mixtral-8x7b", micro=1),
    "expert stage": plan({"stage": 4, "fsdp": 4, "expert": 8}, "mixtral-8x7b", micro=4),
    "deepseek": plan({"fsdp": 16, "expert": 8}, "deepseek-v3", micro=2),
    "group": plan({"fsdp": 8, "tensor": 8, "group": 2}, "llama3-70b"),
    "everything": plan({"stage": 2, "data": 2, "fsdp": 4, "context": 2, "tensor": 4}, micro=2),
    "groups of layers": plan({"fsdp": 128}, remat="every-4"),
    "offloaded": plan({"fsdp": 128}, offload_optimizer=True, remat="offload-dots"),
    "gpu": plan({"fsdp": 16, "tensor": 8}, machine=H100, attention="cudnn", compiler_flags={"xla_gpu_x": "true"}),
}


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        ({"fsdp": 128}, 8, {"fsdp": 8}),
        ({"data": 2, "fsdp": 64}, 8, {"data": 2, "fsdp": 4}),
        ({"data": 16, "fsdp": 8}, 8, {"data": 4, "fsdp": 2}),       # the longer axis is cut less deep
        ({"stage": 4, "data": 8, "tensor": 4}, 8, {"stage": 2, "data": 2, "tensor": 2}),
        # four axes on four devices: those that make another program stay, data goes
        ({"stage": 4, "data": 8, "fsdp": 2, "tensor": 4}, 4, {"stage": 2, "data": 1, "fsdp": 1, "tensor": 2}),
        ({"data": 2, "context": 4, "expert": 4, "tensor": 4}, 4, {"data": 1, "context": 2, "expert": 2, "tensor": 1}),
        ({"fsdp": 35, "tensor": 2}, 8, {"fsdp": 1, "tensor": 2}),   # 35 has no divisor that fits beside 2 but 1
        ({"fsdp": 35}, 8, {"fsdp": 7}),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 8, {"data": 2, "fsdp": 2, "tensor": 2}),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 100, {"data": 2, "fsdp": 2, "tensor": 2}),
        ({"fsdp": 128}, 1, {"fsdp": 1}),
    ],
)  # fmt: skip
def test_axis_sizes_by_hand(asked, devices, expected):
    assert axis_sizes(asked, devices) == expected


def test_no_devices_are_no_mesh():
    with pytest.raises(ValueError, match="at least 1"):
        axis_sizes({"data": 2}, 0)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("devices", [8, 4, 6])
def test_a_cut_plan_keeps_roles_and_divides(name, devices):
    asked = PLANS[name]
    found = scaled(asked, dataclasses.replace(CPU, devices=devices))
    ran, model, was = found.plan, found.plan.workload.model, asked.workload.model
    assert math.prod(ran.sizes.values()) <= devices and list(ran.sizes) == list(asked.sizes)
    assert all(asked.size(axis) % size == 0 for axis, size in ran.sizes.items())
    # an axis may only go where those that come before it in the order leave no factor of 2
    wanted = [axis for axis in KEPT_FIRST if asked.size(axis) > 1][: int(math.log2(devices))]
    assert all(ran.size(axis) > 1 for axis in wanted)
    # divisibility: `search.legal` says what a mesh asks of a model
    tensor = ran.size_of_role("tensor")
    assert model.embed % math.prod(ran.size(axis) for axis in STORED_OVER) == 0
    for size in (model.heads, model.mlp, model.vocab, ran.workload.seq):
        assert size % tensor == 0
    assert model.kv_heads % ran.size("tensor") == 0 and model.heads % model.kv_heads == 0
    if ran.size("group") > 1:
        assert model.kv_heads == ran.size("tensor") and model.heads // model.kv_heads % ran.size("group") == 0
    if ran.size("context") > 1:
        assert ran.workload.seq % (2 * ran.size("context") * tensor) == 0
        assert ran.context_attention == "ring" or model.kv_heads // ran.size("tensor") % ran.size("context") == 0
    assert model.repeated_layers % (ran.stages * ran.repeats) == 0 and model.repeated_layers >= 2
    if was.experts is not None:
        assert model.experts.experts % ran.size("expert") == 0 and 0 < model.experts.top_k <= model.experts.experts
        assert (model.experts.first_dense_layers > 0) == (was.experts.first_dense_layers > 0)
    # several microbatches stay several, a pipeline's ring stays full, several layers a stage's
    assert (ran.microbatches > 1) == (asked.microbatches > 1)
    assert ran.schedule != "circular" or ran.microbatches >= ran.stages
    assert ran.zero1 == (asked.zero1 and ran.size("data") > 1) and ran.remat == asked.remat
    # the same structure
    for same in ("norm", "positions", "activation", "tied_embeddings", "qk_norm", "post_norms"):
        assert getattr(model, same) == getattr(was, same)
    assert (model.latent_attention is None) == (was.latent_attention is None)
    assert (model.heads > model.kv_heads) == (was.heads > was.kv_heads)
    assert ran.attention == "blockwise" and not ran.compiler_flags
    assert step_flops(model, ran.workload) <= VIRTUAL_STEP_FLOPS
    assert affordable(ran) and found.changed
    told = found.to_json()
    assert told["axes"] == {a: [asked.size(a), s] for a, s in ran.sizes.items() if s != asked.size(a)}
    assert told["batch"] == [asked.workload.batch, ran.workload.batch] and "layers" in told["model"]


def test_what_is_said_of_a_cut_plan():
    words = " ".join(scaled(PLANS["gpu"], CPU).words)
    for said in (
        "8 devices are attached, the plan is for 128: fsdp 16 -> 4, tensor 8 -> 2 (the same roles).",
        "Attention runs as blockwise: cpu has no cudnn kernel.",
        "layers 32 -> 2, embed 4,096 -> ",
        f"The plan's compiler flags are {H100.chip.name}'s and are left out.",
    ):
        assert said in words
    gone = scaled(PLANS["everything"], dataclasses.replace(CPU, devices=4)).words[0]
    assert gone.endswith("data 2 -> 1, fsdp 4 -> 1, tensor 4 -> 1 (no device left for data, fsdp, tensor).")
    assert "4 of 6 devices are used." in scaled(PLANS["fsdp"], dataclasses.replace(CPU, devices=6)).words


def test_on_its_own_machine_nothing_changes():
    for asked, kind in ((PLANS["three"], "TPU v5 lite"), (PLANS["gpu"], "NVIDIA H100 80GB HBM3")):
        here = Attached(asked.machine.kind, kind, 128)
        found = scaled(asked, here)
        assert found.plan == asked and found.words == () and found.to_json() is None and not found.changed
        more = scaled(asked, dataclasses.replace(here, devices=256))
        assert more.plan == asked and more.words == ("128 of 256 devices are used.",)


def test_on_fewer_of_its_own_chips_kernel_and_flags_stay_and_layers_go_first():
    here = Attached("gpu", "NVIDIA H100 80GB HBM3", 8)
    asked = PLANS["gpu"]
    assert scaled(asked, here).plan.workload.model == asked.workload.model      # nothing says that it is too large
    found = scaled(asked, here, lambda plan: plan.workload.model.layers <= 8).plan
    assert found.attention == "cudnn" and found.compiler_flags == {"xla_gpu_x": "true"}
    assert found.workload.model == dataclasses.replace(asked.workload.model, layers=8)
    # 512 sequences on 128 devices are 32 on 8: as many tokens a device
    assert found.workload.batch == 32 and found.workload.seq == 8192 and found.microbatches == 4
    narrow = scaled(asked, here, lambda plan: plan.workload.model.embed <= 1024).plan
    assert narrow.workload.model.head_dim == asked.workload.model.head_dim      # widths that kernels know
    assert narrow.workload.model.layers == 2


def test_nothing_fits():
    with pytest.raises(InputError, match="even its smallest model"):
        scaled(PLANS["fsdp"], CPU, lambda plan: False)


def test_given_tokens_keep_the_vocabulary():
    found = scaled(PLANS["fsdp"], CPU, lambda plan: plan.workload.model.embed <= 64, keep_vocab=True)
    assert found.plan.workload.model.vocab == PLANS["fsdp"].workload.model.vocab


def test_a_program_of_theirs_keeps_everything_but_its_batch():
    work = Workload(None, 512, 32, parameter_dtype=AS_WRITTEN, compute_dtype=AS_WRITTEN, reference="/a/b.py:program")
    asked = Plan(V5E, work, mesh_axes({"data": 4, "fsdp": 16, "tensor": 2}), AS_WRITTEN, 2, AS_WRITTEN)
    found = scaled(asked, CPU)
    assert found.plan.sizes == {"data": 2, "fsdp": 2, "tensor": 2}
    # a fourth of the rows' shards each of which had 512 / 64 rows, and a device two times as many tokens as before
    assert found.plan.workload == dataclasses.replace(work, batch=32) and found.plan.attention == AS_WRITTEN
    assert parity_plan(found.plan).workload.batch == 4 * 2       # a row a microbatch and shard


@pytest.mark.parametrize("name", PLANS)
def test_what_is_compared_with_one_device_is_small_and_exact(name):
    ran = scaled(PLANS[name], CPU).plan
    small = parity_plan(ran)
    assert small.sizes == ran.sizes and small.remat == ran.remat and small.schedule == ran.schedule
    assert (small.workload.compute_dtype, small.workload.parameter_dtype) == ("float32", "float32")
    assert affordable(small, 5 * PARITY_STEP_FLOPS)     # what mixtures' smallest models take
