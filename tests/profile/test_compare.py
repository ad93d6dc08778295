"""Prediction beside measurement: rows that add up, names that meet, findings that explain."""

from dataclasses import replace

import pytest
from made_spaces import AXES, HLO, LEDGER_US, PERIOD, gpu

from jaxplan.compile.evidence import Evidence, Schedule, Traffic
from jaxplan.compile.hlo import parse
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.profile.compare import compare
from jaxplan.profile.measured import measure
from jaxplan.profile.predicted import Predicted, predictions, under_measured_names
from jaxplan.profile.trace import read
from jaxplan.workload.shape import ModelShape, Workload

US = 1e-6
PLAN = Plan(
    machine=catalogue.machine("1x4", "h100", None),
    workload=Workload(ModelShape("tiny", 2, 64, 128, 4, 4, 16, 256), batch=32, seq=128),
    axes=mesh_axes(AXES),
    remat="full",
    microbatches=2,
    attention="cudnn",
)
COMPILED = Evidence(
    "compiled", "ok", "cuda",
    traffic=(Traffic("all-reduce", ("tensor",), 1, 1, 64 * 64 * 4, 20 * US),),
    schedule=Schedule(
        280 * US, 200 * US, 400 * US,
        (("matmul", 190 * US), ("memory-bound", 38 * US), ("exposed tensor", 40 * US),
         ("slowed by collectives", 12 * US)),
    ),
)  # fmt: skip
ESTIMATED = {
    "time_s": {"matmul": 100 * US, "recompute": 50 * US, "lookup": 10 * US, "memory-bound": 20 * US,
               "exposed tensor all-reduce": 30 * US, "exposed tensor reduce-scatter": 5 * US},
    "collectives": [{"kind": "all-reduce", "axes": ["tensor"], "bytes": 16384.0, "seconds": 35 * US}],
}  # fmt: skip


@pytest.fixture
def measured(tmp_path):
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(gpu())
    return measure(read(path), parse(HLO), AXES)


def record(**evidence) -> PlanRecord:
    return PlanRecord(PLAN, evidence=evidence)


def test_rows_add_up_to_the_gap_of_the_better_tier(measured) -> None:
    found = compare(measured, record(estimated=ESTIMATED, compiled=COMPILED.to_json()))
    assert [(one.tier, one.step_s) for one in found.predicted] == [
        ("estimated", pytest.approx(215 * US)), ("compiled", pytest.approx(280 * US)),
    ]  # fmt: skip
    assert found.gap_s == pytest.approx((PERIOD - 280) * US)
    assert sum(map(found.difference_s, found.rows)) == pytest.approx(found.gap_s)
    rows = {row.name: row for row in found.rows}
    # what collectives slow compute by is in compute's measured time: 12 us in shares of 190 and 38
    assert rows["matmul"].compiled_s == pytest.approx((190 + 12 * 190 / 228) * US)
    assert rows["memory-bound"].compiled_s == pytest.approx((38 + 2) * US)
    assert rows["memory-bound"].estimated_s == pytest.approx(30 * US)
    assert rows["exposed tensor"].estimated_s == pytest.approx(35 * US)
    assert {name: row.measured_s for name, row in rows.items() if row.measured_s} == {
        name: pytest.approx(spent * US) for name, spent in LEDGER_US.items()
    }
    assert rows["recompute"].measured_s == 0.0


def test_one_tier_alone_predicts(measured) -> None:
    found = compare(measured, record(estimated=ESTIMATED))
    assert found.tier == "estimated"
    assert found.gap_s == pytest.approx((PERIOD - 215) * US)
    assert found.rows[0].compiled_s is None


def test_without_a_plan_a_profile_stands_alone(measured) -> None:
    found = compare(measured, expected_s=300 * US)
    assert (found.tier, found.gap_s) == ("", pytest.approx(100 * US))
    titles = [one.title for one in found.findings]
    assert titles[0] == "the host is late"
    assert "collectives over tensor are not hidden" in titles
    assert "collectives over data+tensor are not hidden" not in titles      # 20 of 120 us are


def test_findings_name_what_the_gap_is_made_of(measured) -> None:
    found = compare(measured, record(compiled=COMPILED.to_json()))
    titles = {one.title: one for one in found.findings}
    assert titles["the host is late"].seconds == pytest.approx(70 * US)
    assert titles["gaps between operations"].seconds == pytest.approx(20 * US)
    assert titles["all-reduce over tensor is slow"].seconds == pytest.approx(30 * US)
    assert titles["more moves over data+tensor than compiled"].seconds == pytest.approx(20 * US)
    assert [one.seconds for one in found.findings] == sorted((o.seconds for o in found.findings), reverse=True)
    faster = Schedule(200 * US, 1e-6, 1.0, (("matmul", 90 * US), ("memory-bound", 110 * US)))
    slower = replace(COMPILED, schedule=faster)
    title = {one.title: one for one in compare(measured, record(compiled=slower.to_json())).findings}
    assert title["matmul is slower than compiled"].seconds == pytest.approx(100 * US)
    assert "dot.1 (/home/you/train.py:7)" in title["matmul is slower than compiled"].detail


def test_a_straggler_is_named(measured) -> None:
    slow = replace(measured.devices[0], ordinal=7, behind_s=40 * US)
    found = compare(replace(measured, devices=(*measured.devices, slow)))
    assert any(one.title == "a straggler" and "device 7" in one.detail for one in found.findings)


def test_unsteady_steps_are_said(measured) -> None:
    steps = (*([PERIOD * US] * 8), 900 * US, 900 * US)
    trace = replace(measured.trace, steps=tuple(range(10)))
    found = compare(replace(measured, steps=steps, step=0, trace=trace))
    assert any(one.title == "steps are unsteady" for one in found.findings)


def test_a_plan_for_another_machine_predicts_no_speed(measured) -> None:
    other = replace(PLAN, machine=catalogue.machine("2x2", "v5e", None))
    found = compare(measured, PlanRecord(other, evidence={"compiled": COMPILED.to_json()}))
    assert "v5e" in found.elsewhere
    assert not any("slow" in one.title for one in found.findings)


def test_a_plan_for_another_mesh_predicts_no_speed(measured) -> None:
    other = replace(PLAN, axes=mesh_axes({"data": 4}))
    found = compare(measured, PlanRecord(other, evidence={"compiled": COMPILED.to_json()}))
    assert found.elsewhere == (
        "the plan's mesh is data=4, the program ran on data=2,tensor=2: predicted times are another mesh's"
    )
    own = compare(measured, PlanRecord(other), (Predicted("estimated", {"matmul": 300 * US}),))
    assert own.elsewhere == ""      # what was predicted for the run itself


def test_an_edited_plan_predicts_nothing(measured) -> None:
    stale = PlanRecord(PLAN, evidence={"compiled": COMPILED.to_json()}, fingerprint="another")
    found = compare(measured, stale)
    assert found.predicted == ()
    assert any("changed after" in note for note in found.notes)


def test_a_scaled_runs_own_prediction_counts(measured) -> None:
    found = compare(measured, record(compiled=COMPILED.to_json()), (Predicted("estimated", {"matmul": 300 * US}),))
    assert found.gap_s == pytest.approx(100 * US)


def test_names_of_predictions_become_those_of_the_trace() -> None:
    axes = ("data", "fsdp", "tensor")
    assert under_measured_names(
        {"exposed fsdp+data all-gather": 1, "exposed data+fsdp": 2, "exposed copies": 3, "exposed host transfers": 4,
         "exposed all-to-all": 5, "pipeline bubble": 6, "slowed by collectives": 7}, axes,
    ) == {
        "exposed data+fsdp": 3, "exposed copies": 3, "exposed host transfers": 4, "exposed all-to-all": 5,
        "pipeline bubble": 6, "memory-bound": 7,
    }  # fmt: skip
    assert predictions(record()) == ()


def test_the_document_survives_json(measured) -> None:
    import json

    document = json.loads(json.dumps(compare(measured, record(compiled=COMPILED.to_json())).to_json()))
    assert document["schema"] == "jaxplan.compare/1"
    assert sum(row["difference_s"] for row in document["ledger"]) == pytest.approx(document["step_time_s"]["gap"])
    assert document["attributed"] == pytest.approx(1.0)
