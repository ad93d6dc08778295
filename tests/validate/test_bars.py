"""The requirements: all of them, in words and limits of the task, judged by the right figure."""

from dataclasses import replace

import pytest
from made_rows import ROW as MADE

from jaxplan.validate.bars import Bar, bars, judged_rows
from jaxplan.validate.row import GROUPS

ROW = replace(
    MADE, predicted_step_time_s=1.1, low_s=0.9, high_s=1.2, ledger_s={"matmul": 1.1}, published_memory_bytes=5e10,
    memory_kind="max_reserved", predicted_memory_bytes=5.2e10, fits=True,
)  # fmt: skip


def test_the_rows_that_are_judged():
    rows = [ROW, replace(ROW, grade="B"), replace(ROW, part="fit")]
    assert judged_rows(rows) == (ROW,)
    assert judged_rows(rows, "fit") == (rows[2],)


def test_every_requirement_is_there():
    found = {bar.what: bar for bar in bars([])}
    assert all(bar.ours is None and bar.passed is None and bar.count == 0 for bar in found.values())
    for group in GROUPS:
        assert found[f"step time, mean absolute error, {group}"].limit == 0.12
        assert found[f"signed bias, {group}"].limit == 0.05
    assert len(found) == 1 + 2 * len(GROUPS) + 3 + 4 + 3


def test_one_row():
    found = {bar.what: bar for bar in bars([ROW])}
    overall = found["step time, mean absolute error, all"]
    assert overall.ours == pytest.approx(0.1) and overall.count == 1
    assert found["signed bias, FSDP"].passed is False and found["signed bias, TPU"].passed is None
    assert found["published value inside [low, high]"].passed is True
    assert found["high/low, median"].ours == pytest.approx(1.2 / 0.9)
    assert found["memory, mean absolute error"].ours == pytest.approx(0.04)
    assert found["runs that ran, predicted to miss by over 10%"].passed is True
    assert found["runs out of memory, predicted not to fit"].passed is None
    assert found["pairs of plans in the right order"].passed is None


@pytest.mark.parametrize(
    ("bar", "passed"),
    [
        (Bar("", "<", 0.1, "%", 0.1, 1), False),
        (Bar("", "<", 0.1, "%", 0.0999, 1), True),
        (Bar("", "<=", 0.05, "%", -0.051, 1, signed=True), False),
        (Bar("", "<=", 0.05, "%", -0.05, 1, signed=True), True),
        (Bar("", ">=", 0.92, "%", 0.92, 1), True),
        (Bar("", ">=", 0.85, "", -0.9, 1), False),
    ],
)
def test_verdicts(bar, passed):
    assert bar.passed is passed
