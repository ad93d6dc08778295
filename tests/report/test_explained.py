"""What is said of a plan: whose word counts, ledgers that add up in JSON, text that fits a narrow terminal."""

import json
import math
from dataclasses import replace

import pytest

from jaxplan.compile.evidence import Buffer, Evidence, Memory, Schedule, Traffic
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import MemoryLedger, Part, PlanRecord, RunnerUp, SearchRecord
from jaxplan.report.explain import ExplainReport
from jaxplan.report.explain_json import explain_json
from jaxplan.report.explain_text import explain_lines
from jaxplan.search.asked import parse
from jaxplan.search.explain import Correction, anatomy
from jaxplan.search.neighbours import neighbours
from jaxplan.search.why_not import why_not
from jaxplan.workload.shape import ModelShape, Workload

SHAPE = ModelShape("small", layers=4, embed=256, mlp=512, heads=8, kv_heads=4, head_dim=32, vocab=1024)
WORKLOAD = Workload(SHAPE, batch=256, seq=512)
MACHINE = catalogue.machine("8x8", "h100", None)
EVERY_AXIS = {"stage": 2, "data": 2, "fsdp": 2, "tensor": 4, "group": 2}
CAPACITY = MACHINE.device_hbm_bytes
HELD = Memory("cuda", 1000, 900, 900, 2000, by_kind={"parameters": 400, "optimizer": 600, "temporaries": 2000})
SCHEDULE = Schedule(0.5, 0.4, 0.8, (("matmul", 0.3), ("exposed fsdp", 0.2)), (("all-gather fsdp", 0.25),))
COMPILED = Evidence(
    "compiled", "ok", "cuda",
    capacity_bytes=CAPACITY,
    memory=HELD,
    schedule=SCHEDULE,
    flops={"matmul": 2e9},
    buffers=(Buffer("jit(step)/while/body/closed_call/dot", "bf16[8]", 1500, "temporary"),) * 2,
    traffic=(Traffic("all-gather", ("fsdp",), 2, 64, 1e6, 0.25), Traffic("all-to-all", ("data",), 1, 1, 9.0)),
)
REFUSED = Evidence(
    "compiled", "does not fit", "cuda", "needs 99.0 GiB of 59.3 GiB", capacity_bytes=CAPACITY, needed_bytes=99 * 2**30
)


@pytest.fixture(scope="module")
def table():
    from jaxplan.compile.lower import trace_job
    from jaxplan.workload.table import Table

    return Table.from_json(trace_job(WORKLOAD.to_json()))


@pytest.fixture(scope="module")
def made(table):
    """A function from the sizes of a mesh to a report on the estimate alone."""
    known = {}

    def make(sizes, asked=None):
        key = str(sizes)
        plan = Plan(MACHINE, WORKLOAD, mesh_axes(sizes), remat="full", microbatches=4, attention="cudnn")
        if key not in known:
            known[key] = anatomy(plan, table), neighbours(plan, table)
        found, near = known[key]
        answer = None if asked is None else why_not(parse(asked, MACHINE), plan, found.estimate, table)
        return ExplainReport(PlanRecord(plan), found, Correction(), near, why_not=answer)

    return make


def ledger(total):
    parts = (Part("params", 400, "compiled"), Part("workspace", total - 400, "compiled"))
    return MemoryLedger(parts, CAPACITY)


@pytest.mark.parametrize(
    ("evidence", "needs", "fits", "source"),
    [
        ({}, 0.5, True, "estimated"),
        ({}, 0.99, None, "estimated"),      # estimates have been wrong by more
        ({}, 1.01, False, "estimated"),
        ({"compiled": COMPILED}, 1.01, True, "compiled"),
        ({"compiled": REFUSED}, 0.5, False, "compiled"),
        ({"partitioned": replace(REFUSED, tier="partitioned")}, 0.5, False, "partitioned"),
        ({"partitioned": Evidence("partitioned", "ok", "cpu")}, 0.5, True, "estimated"),
        ({"compiled": replace(COMPILED, status="not available")}, 0.5, True, "estimated"),
    ],
)
def test_whose_word_counts(made, evidence, needs, fits, source):
    plain = made({"fsdp": 64})
    ratio = needs * CAPACITY / plain.anatomy.estimate.total_bytes
    report = replace(plain, evidence=evidence, correction=Correction(memory=ratio))
    assert (report.verdict.fits, report.verdict.source) == (fits, source)
    first = "\n".join(explain_lines(report, 200)[:6])
    assert {True: "fits", False: "does not fit", None: "too close to tell"}[fits] + f" ({source}" in first
    assert explain_json(report)["fits"] is fits


def test_compiled_figures_stand_beside_the_estimated_ones(made):
    plain = made({"data": 2, "fsdp": 32})
    record = replace(plain.record, memory=ledger(3000))
    report = replace(plain, record=record, evidence={"compiled": COMPILED}, correction=Correction(2.0, 2.0))
    found = explain_json(report)
    time, memory = found["step_time_s"], found["memory_bytes"]
    assert (time["value"], time["source"], memory["total"], memory["source"]) == (0.5, "compiled", 3000, "compiled")
    assert time["compiled"]["parts"] == {"matmul": 0.3, "exposed fsdp": 0.2}
    assert time["estimated"]["value"] == pytest.approx(plain.anatomy.estimate.value_s)
    assert memory["compiled"]["total"] == 3000 and len(memory["largest_at_the_peak"]["buffers"]) == 2
    assert found["flops"]["mfu"]["value"] == pytest.approx(plain.anatomy.model_flops / (64 * 989e12) / 0.5, rel=1e-3)
    assert found["bottleneck"] == {"entry": "matmul", "share": pytest.approx(0.6), "source": "compiled"}
    axes = {axis["axis"]: axis["compiled"] for axis in found["axes"]}
    assert [entry["kind"] for entry in axes["fsdp"]] == ["all-gather"] and axes["data"][0]["seconds"] is None
    text = "\n".join(explain_lines(report, 100))
    assert "500 ms (400 to 800), compiled" in text and "1.46 KiB  2 x  bf16[8]  temporary  dot" in text
    assert "Waiting for links: 40% (fsdp 40%)" in text and "128 GFLOP (compiled)" in text
    assert "divided as estimated" in text


def test_a_measured_step_is_told(made):
    plain = made({"fsdp": 64})
    measured = {"measured": {"step_time_s": {"value": 0.125}}}
    report = replace(plain, record=replace(plain.record, evidence=measured))
    assert "measured 125 ms" in "\n".join(explain_lines(report, 140))
    assert explain_json(report)["step_time_s"]["by_tier"] == {"measured": 0.125}
    edited = replace(report.record, plan=replace(plain.plan, remat="dots"))
    assert "measured" not in "\n".join(explain_lines(replace(report, record=edited), 140)).partition("Roofline")[0]


def test_estimates_are_corrected_aloud(made):
    report = replace(made({"fsdp": 64}), correction=Correction(memory=1.25, time=2.0))
    estimate = report.anatomy.estimate
    assert report.step_s == pytest.approx(2 * estimate.value_s)
    assert report.total_bytes == pytest.approx(1.25 * estimate.total_bytes)
    text = " ".join(" ".join(explain_lines(report, 80)).split())
    assert "estimated and corrected" in text and "2.00 times their estimates" in text and "1.25 times their" in text


@pytest.mark.parametrize("sizes", [{"fsdp": 64}, {"data": 2, "fsdp": 8, "tensor": 4}, EVERY_AXIS])
def test_json_adds_up_and_says_sources(made, sizes):
    found = json.loads(json.dumps(explain_json(made(sizes)), allow_nan=False))
    assert found["schema"] == "jaxplan.explain/1"
    time, memory = found["step_time_s"]["estimated"], found["memory_bytes"]
    assert math.isclose(sum(time["parts"].values()), time["value"]) and time["low"] <= time["value"] <= time["high"]
    assert math.isclose(sum(part["bytes"] for part in memory["estimated"]["parts"].values()), memory["total"])
    assert {part["source"] for part in memory["estimated"]["parts"].values()} == {"estimated"}
    sections = (found["roofline"], found["changes"], found["flops"]["executed"], found["memory_bytes"]["moment"])
    assert {section["source"] for section in sections} == {"estimated"}
    assert {axis["axis"]: axis["size"] for axis in found["axes"]} == {k: n for k, n in sizes.items() if n > 1}
    for axis in found["axes"]:
        moved = axis["estimated"]["collectives"]
        assert math.isclose(sum(entry["seconds"] for entry in moved), axis["estimated"]["seconds"])
        assert [place["in_place_of"] for place in axis["elsewhere"]] == [a for a in sizes if a != axis["axis"]]
    assert (found["pipeline"] is None) == ("stage" not in sizes)
    best = [plan["step_time_s"] for plan in found["changes"]["best"]]
    assert best == sorted(best) and len(best) == 3 and all(plan["fits"] for plan in found["changes"]["best"])
    decisions = [plan["decision"] for plan in found["changes"]["by_decision"]]
    assert len(set(decisions)) == len(decisions) >= 3 and "mesh" in decisions


@pytest.mark.parametrize("asked", ["data=8,fsdp=8", "tensor=8,fsdp=8", "remat=none", "fsdp=64,remat=dots"])
@pytest.mark.parametrize("width", [80, 140])
def test_text_fits_the_terminal(made, asked, width):
    report = made(EVERY_AXIS, asked)
    lines = explain_lines(replace(report, broken="a rule", uncovered={"sort": 2}), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for words in (
        *("Plan    stage=2 data=2 fsdp=2 tensor=4 group=2 gpipe", "Illegal a rule", "Roofline of a device", "NVLink"),
        *("Axis group: 2 devices, role tensor", "(p - 1) / (m v + p - 1) = 1 / 5", "this plan's", "for export"),
        *("What limits it:", "What each decision is worth", f"Why not {asked}?", "Not counted: sort (2)"),
    ):
        assert words in text


def test_every_verdict_on_another_plan_has_its_words(made):
    report = made({"fsdp": 64}, "fsdp=64,remat=dots")
    slower = replace(report.why_not, verdict="slower", slower_s=0.002)
    said = {
        "slower by 2.00 ms": slower,
        "faster by 2.00 ms": replace(slower, verdict="faster", slower_s=-0.002),
        "as fast": replace(slower, verdict="as fast"),
        "it is this plan": replace(slower, verdict="the same plan"),
        "1.00 GiB too much": replace(slower, verdict="does not fit", over_bytes=2**30, binding="activations"),
        "illegal: no": replace(slower, verdict="illegal", reason="no", plan=None, estimate=None),
    }
    for words, answer in said.items():
        assert words in "\n".join(explain_lines(replace(report, why_not=answer), 140))


def test_what_the_search_said_of_the_other_plan_is_told(made):
    report = made({"fsdp": 64}, "fsdp=64,remat=dots,microbatches=1")
    ups = (
        RunnerUp("fsdp=64", "dots", 1, 0.25, 0.1, "compiled", "refused in the end"),
        RunnerUp("fsdp=64", "full", 1, 0.75, 0.1, "estimated"),
    )
    record = replace(report.record, search=SearchRecord(9, 4, {}, ups))
    text = "\n".join(explain_lines(replace(report, record=record), 140))
    assert "Search  9 plans, 4 fit" in text and "250 ms (compiled; refused in the end)" in text and "750 ms" not in text


def test_nothing_fits_next_to_it(made):
    plain = made({"fsdp": 64})
    report = replace(plain, neighbours=tuple(replace(n, fits=False) for n in plain.neighbours))
    text = "\n".join(explain_lines(report, 140))
    assert "No plan that differs by one decision fits" in text and text.count("does not fit") >= 3
    assert "What each decision" not in "\n".join(explain_lines(replace(plain, neighbours=()), 140))
