"""A small plan on a machine of eight chips that no catalogue file can change."""

import dataclasses

from jaxplan.machine.chip import Chip
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.plan.record import (
    PlanRecord,
    leaf_specs,
)
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.table import Dim, Leaf, Table

CHIP = Chip(
    id="v5e",
    name="TPU v5e",
    vendor="Google",
    kind="tpu",
    matmul_flops_per_s={"bfloat16": 197e12},
    hbm_bytes=16 * 2**30,
    hbm_usable_bytes=15 * 2**30,
    hbm_bytes_per_s=819e9,
    fabric="torus",
    link_bytes_per_s=45e9,
    links=4,
    aliases=("v5litepod",),
)
MACHINE = Machine(
    name="v5e 2x4",
    family="v5e",
    chip=CHIP,
    shape=(2, 4),
    wraps=(False, False),
    chips_per_host=8,
    domain_chips=8,
    dcn_bytes_per_s_per_host=12.5e9,
    topology_name="v5e:2x4",
)
MODEL = ModelShape("toy", layers=4, embed=64, mlp=128, heads=8, kv_heads=4, head_dim=8, vocab=256)
SIZES = {
    "batch": 16,
    "seq": 32,
    "layers": 4,
    "embed": 64,
    "mlp": 128,
    "heads": 8,
    "head_dim": 8,
    "vocab": 256,
}
NAMES = list(SIZES)


def shape(*names: str) -> tuple[tuple[int, ...], ...]:
    return tuple((NAMES.index(name),) for name in names)


PARAMETERS = (
    Leaf("embedding", shape("vocab", "embed"), 4, "float32"),
    Leaf("final_norm", shape("embed"), 4, "float32"),
    Leaf("layers.up", shape("layers", "embed", "mlp"), 4, "float32"),
    Leaf("layers.mlp_norm", shape("layers", "embed"), 4, "float32"),
)
TABLE = Table(
    dims=tuple(Dim(name, size) for name, size in SIZES.items()),
    values=(),
    operations=(),
    residuals=(),
    parameters=PARAMETERS,
    optimizer=(
        Leaf("0.count", (), 4),
        *(dataclasses.replace(p, path=f"0.{m}.{p.path}") for m in ("mu", "nu") for p in PARAMETERS),
    ),
    batch=(Leaf("tokens", shape("batch", "seq"), 4), Leaf("targets", shape("batch", "seq"), 4)),
    uncovered={},
    name="toy",
)


def make_plan(data: int = 2, fsdp: int = 2, tensor: int = 2, **changes) -> Plan:
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    values = {
        "machine": MACHINE,
        "workload": Workload(MODEL, batch=16, seq=32),
        "axes": tuple(MeshAxis(name, size, name) for name, size in sizes.items()),
        "remat": "full",
        "microbatches": 1,
        "attention": "blockwise",
        "zero1": True,
        "compiler_flags": {"xla_a_flag": "1"},
    }
    return Plan(**{**values, **changes})


def make_record(plan: Plan, **changes) -> PlanRecord:
    parameters, optimizer, batch = leaf_specs(TABLE, plan.rules, tuple(plan.sizes))
    return PlanRecord(plan, parameters, optimizer, batch, **changes)
