"""Fixtures of the tests of plans."""

import pytest
from sample_plans import make_plan, make_record

from jaxplan.plan.plan import Plan
from jaxplan.plan.record import LeafSpec, MemoryLedger, Part, PlanRecord, RunnerUp, SearchRecord, TimeLedger


@pytest.fixture
def plan() -> Plan:
    return make_plan()


@pytest.fixture
def record(plan: Plan) -> PlanRecord:
    return make_record(
        plan,
        placement={"tensor": "ICI x, a line of 2"},
        memory=MemoryLedger(
            (
                Part("params", 1234.0, "compiled"),
                Part("workspace", 0.1, "estimated"),
                Part("batch", 0.2, "estimated"),
            ),
            16 * 2**30,
        ),
        time=TimeLedger((Part("matmul", 0.7, "estimated"), Part("exposed", 0.1, "estimated")), 0.7, 1.1),
        evidence={
            "compiled": {
                "total_bytes": 1300,
                "step_time_s": 0.9,
                "collectives": [{"kind": "all-gather", "bytes": 3}],
            },
            "estimated": {"total_bytes": 1234.3, "step_time_s": {"value": 0.8, "low": 0.7, "high": 1.1}},
        },
        search=SearchRecord(
            40,
            10,
            {"memory": 25, "batch": 5},
            (RunnerUp("fsdp=8", "dots", 1, 0.84, 0.05, "compiled", "near a tie"),),
        ),
        versions={"jax": "0.10.2"},
        assumptions=("sequence 32: the model's default.", "Ångström × π"),
    )


@pytest.fixture
def leaf() -> LeafSpec:
    return LeafSpec("w", (64, 128), "float32", 4, (("embed",), ("mlp",)), (("fsdp",), ("tensor",)))
