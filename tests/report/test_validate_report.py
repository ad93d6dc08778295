"""`validate` as value, JSON, text and page: nothing is dropped, every figure is the one of the statistics."""

import json
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from jaxplan.report.validate import ValidateReport, validate_json
from jaxplan.report.validate_page import validate_page
from jaxplan.report.validate_text import validate_renderables
from jaxplan.validate.baselines import baselines
from jaxplan.validate.row import Row

# the keys that the schema promises for each row
ROW_KEYS = {
    "id", "predicted_step_time_s", "low_s", "high_s", "published_step_time_s", "error", "predicted_memory_bytes",
    "published_memory_bytes", "fits", "not_predicted",
}
GOOD = Row(
    id="good", chip="h100-sxm", framework="torchtitan (FSDP2)", group="FSDP", kind="dense", grade="A", source="paper",
    series="layouts", varies="FSDP / TP / batch", devices=8, part="check", tokens_per_step=65536.0,
    model_flops=4e14, peak_flops_per_s=1e15, published_step_time_s=1.0, predicted_step_time_s=1.1, low_s=0.9,
    high_s=1.2, ledger_s={"matmul": 0.8, "exposed fsdp": 0.3}, published_memory_bytes=5e10,
    memory_kind="max_reserved", predicted_memory_bytes=5.2e10, capacity_bytes=8e10, fits=True, oom=False,
    not_predicted=None, doubt=None,
)
BAD = replace(
    GOOD, id="bad", published_step_time_s=1.4, predicted_step_time_s=0.7, low_s=0.0, high_s=0.8,
    ledger_s={"matmul": 0.7}, doubt="the source <gives> two figures | one is used", grade="B",
)
OOM = replace(GOOD, id="oom", oom=True, published_step_time_s=None, published_memory_bytes=None, fits=False)
FITTED = replace(GOOD, id="fitted", part="fit", chip="tpu-v5p", group="TPU", series=None, varies=None)
SILENT = replace(
    GOOD, id="silent", predicted_step_time_s=None, low_s=None, high_s=None, ledger_s={}, fits=None,
    predicted_memory_bytes=None, not_predicted="chip 'abacus' is not known",
)
ROWS = (GOOD, BAD, OOM, FITTED, SILENT)


@dataclass
class Parameter:
    name: str
    value: float
    unit: str
    prior: object
    source: str
    fitted: bool


@pytest.fixture
def report():
    return ValidateReport(
        rows=ROWS,
        source="runs.toml",
        parameters=(Parameter("h100.matmul", 0.66, "", 0.7, "GEMM table", True),
                    Parameter("nic.latency", 5e-6, "s", (4e-6, 6e-6), "nccl-tests", False)),
        baselines=baselines(ROWS, ROWS),
        left_out={"source": tuple(replace(row, chip=row.chip) for row in ROWS)},
    )


def text_of(report, width=200, worst=3, plain_text=True):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for shown in validate_renderables(report, worst, width, plain_text):
            console.print(shown, markup=False, highlight=False)
    return captured.get()


def test_json_has_every_run_and_every_key(report):
    found = json.loads(json.dumps(validate_json(report), allow_nan=False))
    assert found["schema"] == "jaxplan.validate/1"
    rows = {row["id"]: row for row in found["rows"]}
    assert list(rows) == [row.id for row in ROWS] and all(set(row) >= ROW_KEYS for row in rows.values())
    assert rows["good"]["error"] == pytest.approx(0.1) and rows["good"]["not_predicted"] is None
    assert rows["silent"]["not_predicted"] == SILENT.not_predicted and rows["silent"]["predicted_step_time_s"] is None
    assert rows["oom"]["fits"] is False and rows["oom"]["error"] is None
    assert sum(rows["good"]["ledger_s"].values()) == pytest.approx(rows["good"]["predicted_step_time_s"])


def test_json_groups(report):
    found = validate_json(report)
    (everything,) = [group for group in found["groups"] if group["by"] == "all"]
    assert (everything["rows"], everything["count"]) == (5, 3)
    assert everything["mean_absolute_error"] == pytest.approx((0.1 + 0.5 + 0.1) / 3)
    assert {group["by"] for group in found["groups"]} >= {"chip", "framework", "kind", "group", "grade", "part"}
    assert set(found["baselines"]) == {"constant MFU per chip", "roofline without communication"}
    assert found["parameters"][0]["fitted"] is True and found["left_out"]["source"]
    assert found["ranking_classes"][0]["varies_class"] == "plan"


def test_an_interval_from_nothing_has_no_ratio(report):
    found = validate_json(replace(report, rows=(BAD,)))
    assert found["groups"][0]["median_high_over_low"] is None


@pytest.mark.parametrize("part", ["check", "fit"])
def test_requirements_are_about_grade_a_of_one_part(report, part):
    of_part = replace(report, rows=tuple(row for row in ROWS if row.part == part), part=part)
    assert {row.id for row in of_part.judged} == ({"good", "oom", "silent"} if part == "check" else {"fitted"})
    assert {row.id for row in report.judged} == {"good", "oom", "silent"}
    title = {"check": "grade A runs of the checking set", "fit": "grade A runs of the fitting set"}[part]
    assert title in text_of(of_part)


def test_text_tells_what_matters(report):
    said = text_of(report)
    for words in (
        *("5 runs, 4 predicted", "1 fitted parameter", "Step time of all runs", "Plans in the right order", "Memory"),
        *("constant MFU per chip", "roofline without communication", "Leaving out a run's source", "The runs furthest"),
        *("chip 'abacus' is not known", "silent", "pass", "MISS", "ledger: matmul 800 ms, exposed fsdp 300 ms"),
        *("1 run went out of memory: 1 predicted not to fit", "doubt: the source <gives> two figures | one is used"),
    ):
        assert words in said
    furthest = said.partition("The runs furthest off")[2]
    assert furthest.index("-50.0%  bad") < furthest.index("+10.0%  good")
    assert "-50.0%  bad" not in text_of(report, worst=0)


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits_the_terminal(report, width):
    for line in text_of(report, width, plain_text=False).splitlines():
        assert len(line) <= width
        assert "…" not in line


def test_no_rows_are_no_error():
    empty = ValidateReport(rows=())
    assert "0 runs, 0 predicted" in text_of(empty) and "no runs" in text_of(empty)
    assert validate_json(empty)["groups"][0]["rows"] == 0
    assert validate_page(empty, 10).startswith("# ")


def test_the_page_is_whole(report):
    page = validate_page(report, 10)
    for words in (
        *("python -m jaxplan validate --page docs/accuracy.md", "## What is required", "## Order of plans", "layouts"),
        *("h100.matmul", "GEMM table", "4e-06 to 6e-06", "1 number fitted, 1 taken", "Doubtful runs, kept"),
        *("the source &lt;gives> two figures \\| one is used", "Leaving out a run's source", "By source", "paper"),
        *("chip 'abacus' is not known", "does not fit (went out of memory)", "Grade B runs of the checking set"),
    ):
        assert words in page
    runs = page.partition("### Every run")[2]
    assert all(f"| {row.id} |" in runs for row in ROWS)
    assert page.endswith("\n") and not page.endswith("\n\n")
    assert page == validate_page(report, 10)        # nothing in it changes from run to run
