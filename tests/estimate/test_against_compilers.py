"""The estimate of a small real decoder against what the target's own compiler made of the same plan.

Bars of memory and collectives as in benchmarks/compiled_accuracy.py, which compares 24 large plans by hand.
"""

import pytest

from jaxplan.compile.environment import available
from jaxplan.compile.tiers import Tiers
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.plan.plan import MeshAxis, Plan, loss_chunks_for
from jaxplan.workload.shape import ModelShape, Workload

MODEL = ModelShape("medium", layers=8, embed=1024, mlp=4096, heads=8, kv_heads=4, head_dim=128, vocab=32768)
WORK = Workload(MODEL, batch=64, seq=1024)
AXES = ("data", "fsdp", "tensor")

PLANS = [((1, 8, 1), "full", 2), ((2, 2, 2), "attention", 4)]

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not available("cuda").ok, reason=f"the CUDA plugin is not here: {available('cuda').problem}"),
]


def plan_of(sizes, remat, microbatches):
    tokens = WORK.batch // (sizes[0] * sizes[1] * microbatches) * WORK.seq
    return Plan(
        machine=catalogue.machine("1x8", "h100", None),
        workload=WORK,
        axes=tuple(MeshAxis(name, size, name) for name, size in zip(AXES, sizes, strict=True)),
        remat=remat,
        microbatches=microbatches,
        attention="cudnn",
        loss_chunks=loss_chunks_for(tokens, MODEL.vocab // sizes[2]),
    )


@pytest.fixture(scope="session")
def comparisons():
    """(plan, estimate, evidence) of every plan; two compiles at a time."""
    plans = [plan_of(*decisions) for decisions in PLANS]
    with Tiers(plans[0].machine) as tiers:
        table = tiers.trace(WORK)
        futures = [tiers.compile(plan) for plan in plans]
        found = [future.result() for future in futures]
    return [(plan, estimate_plan(plan, table), evidence) for plan, evidence in zip(plans, found, strict=True)]




@pytest.mark.parametrize("case", range(len(PLANS)))
def test_memory(comparisons, case):
    _, expected, found = comparisons[case]
    assert found.ok, found.message
    assert expected.total_bytes == pytest.approx(found.total_bytes, rel=0.15)


@pytest.mark.parametrize("case", range(len(PLANS)))
def test_arguments_are_exact(comparisons, case):
    _, expected, found = comparisons[case]
    state = sum(expected.memory_bytes[part] for part in ("params", "optimizer", "batch"))
    assert state == pytest.approx(found.memory.argument_bytes, rel=1e-3)


@pytest.mark.parametrize("case", range(len(PLANS)))
def test_flops(comparisons, case):
    _, expected, found = comparisons[case]
    assert expected.flops == pytest.approx(sum(found.flops.values()), rel=0.01)


@pytest.mark.parametrize("case", range(len(PLANS)))
def test_collective_bytes_by_axis(comparisons, case):
    plan, expected, found = comparisons[case]
    for axis, size in plan.sizes.items():
        estimated = sum(b for (_, axes), b in expected.collective_bytes.items() if axes == (axis,))
        compiled = sum(entry.nbytes for entry in found.traffic if entry.axes == (axis,))
        if size > 1:
            assert estimated == pytest.approx(compiled, rel=0.05), axis


def test_low_value_high_of_both(comparisons):
    for _, expected, found in comparisons:
        assert expected.low_s <= expected.value_s <= expected.high_s
        assert found.step_time_low_s <= found.step_time_s <= found.step_time_high_s


def test_time_ledger_adds_up(comparisons):
    for _, expected, _ in comparisons:
        assert sum(expected.time_s.values()) == pytest.approx(expected.value_s)
