"""Precisions to dtypes, and what narrower matmuls do to a price."""

from dataclasses import replace

import pytest

from jaxplan.cli.request import workload_of
from jaxplan.compile.lower import trace_job
from jaxplan.errors import InputError
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.machine.reached import sustained_fraction
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.precision import PRECISIONS, precision
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.table import Table

SMALL = ModelShape("small", layers=4, embed=512, mlp=2048, heads=8, kv_heads=4, head_dim=64, vocab=1024)


def test_every_precision_makes_a_workload():
    machine = catalogue.machine("1x8", "h100")
    for name in PRECISIONS:
        work = workload_of(machine, "llama3-8b", None, None, 8, 4096, "adamw", None, name)
        assert {field: getattr(work, field) for field in precision(name)} == dict(precision(name))
    with pytest.raises(InputError, match=r"precision 'fp4'.*bf16-pure"):
        precision("fp4")
    with pytest.raises(InputError, match="--precision fp8 with a program of yours"):
        workload_of(machine, None, None, "examples/my_model.py:train", 8, 4096, "adamw", None, "fp8")


def estimated(work: Workload):
    table = Table.from_json(trace_job(work.to_json()))
    machine = catalogue.machine("1x8", "h100")
    plan = Plan(machine, work, mesh_axes({"fsdp": 8}), "full", 1, "cudnn")
    return machine, table, estimate_plan(plan, table)


def test_fp8_speeds_up_the_layers_matmuls_alone():
    work = Workload(SMALL, 64, 2048)
    machine, table, plain = estimated(work)
    _, _, narrow = estimated(replace(work, **precision("fp8")))
    assert narrow.low_s < plain.low_s and narrow.total_bytes == plain.total_bytes
    # the chip's two peaks, of the layers' forward and backward matmuls; the loss and attention stay as they are
    layers = sum(op.flops * op.times for op in table.operations if op.kind == "matmul" and "layers" in op.scope) / 8
    chip = machine.chip
    seconds = {d: layers / (chip.flops_per_s(d) * sustained_fraction(machine, d)) for d in ("bfloat16", "float8")}
    saved = plain.time_s["matmul"] - narrow.time_s["matmul"]
    # small matmuls are bound by memory, which gains nothing
    assert 0.25 * (seconds["bfloat16"] - seconds["float8"]) < saved <= 1.01 * (seconds["bfloat16"] - seconds["float8"])


def test_pure_bfloat16_halves_the_state():
    work = Workload(SMALL, 64, 2048)
    plain, pure = estimated(work)[2], estimated(replace(work, **precision("bf16-pure")))[2]
    for part in ("params", "optimizer"):
        assert pure.memory_bytes[part] == pytest.approx(plain.memory_bytes[part] / 2, rel=1e-4)
