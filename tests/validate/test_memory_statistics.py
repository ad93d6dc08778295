"""Memory by kind, runs that went out of memory, runs that ran: by hand."""

from dataclasses import replace

import pytest
from made_rows import ROW as MADE

from jaxplan.validate.memory_statistics import memory_statistics, out_of_memory

GB = 1e9
ROW = replace(
    MADE, series=None, varies=None, published_memory_bytes=50 * GB, memory_kind="max_reserved",
    predicted_memory_bytes=55 * GB, capacity_bytes=80 * GB, fits=True,
)  # fmt: skip
OOM = replace(ROW, oom=True, published_step_time_s=None, published_memory_bytes=None, memory_kind="", fits=False)


def test_errors_by_kind():
    rows = [
        ROW,
        replace(ROW, predicted_memory_bytes=35 * GB),
        replace(ROW, memory_kind="max_allocated", predicted_memory_bytes=50 * GB),
        replace(ROW, memory_kind="", predicted_memory_bytes=500 * GB),      # what it counts is not stated
        OOM,
    ]
    everything, allocated, reserved = memory_statistics(rows)
    assert (everything.memory_kind, everything.count) == ("all", 3)
    assert everything.mean_absolute_error == pytest.approx((0.1 + 0.3 + 0.0) / 3)
    assert (allocated.memory_kind, allocated.worst_absolute_error) == ("max_allocated", 0)
    assert (reserved.count, reserved.mean_error) == (2, pytest.approx(-0.1))
    assert memory_statistics([OOM])[0].count == 0


def test_verdicts_on_what_did_not_run():
    nothing = {"predicted_step_time_s": None, "low_s": None, "high_s": None, "ledger_s": {}, "fits": None}
    silent = replace(OOM, id="d", not_predicted="no batch", predicted_memory_bytes=None, **nothing)
    found = out_of_memory([OOM, replace(OOM, id="b"), replace(OOM, id="c", fits=True), silent, ROW])
    assert (found.oom_rows, found.judged, found.refused, found.called_fitting) == (4, 3, 2, ("c",))
    assert found.refused_share == pytest.approx(0.5)    # what has no verdict is not refused
    assert out_of_memory([ROW]).refused_share is None


def test_verdicts_on_what_ran():
    needs = {"near": 79 * GB, "over": 87 * GB, "far": 89 * GB}
    rows = [replace(ROW, id=name, predicted_memory_bytes=size, fits=size <= 80 * GB) for name, size in needs.items()]
    found = out_of_memory([*rows, OOM, replace(ROW, id="unknown", capacity_bytes=None, predicted_memory_bytes=1e15)])
    assert found.ran == 3
    assert found.false_misses == ("far",) and found.false_refusals == ("over", "far")
