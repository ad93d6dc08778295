"""A row proves itself: bounds hold the prediction, the ledger adds up, a reason excludes figures."""

import math
from dataclasses import replace

import pytest
from made_rows import ROW as MADE

ROW = replace(
    MADE, predicted_step_time_s=0.9, low_s=0.8, ledger_s={"matmul": 0.6, "attention": 0.3}, high_s=1.2,
    published_memory_bytes=4e10, memory_kind="max_reserved", predicted_memory_bytes=5e10, fits=True,
)  # fmt: skip
NOTHING = {"predicted_step_time_s": None, "low_s": None, "high_s": None, "ledger_s": {}, "fits": None,
           "predicted_memory_bytes": None}


def test_errors_are_relative_to_what_was_published():
    assert ROW.error == pytest.approx(-0.1)
    assert ROW.memory_error == pytest.approx(0.25)
    assert replace(ROW, published_step_time_s=None).error is None
    assert replace(ROW, memory_kind="").memory_error is None
    left_out = replace(ROW, not_predicted="no batch", **NOTHING)
    assert left_out.error is None and left_out.memory_error is None and not left_out.predicted


def test_a_token_costs_device_seconds():
    assert ROW.device_s_per_token(1.0) == pytest.approx(8 / 65536)
    # half the devices and half the tokens in the same time: the same price of a token
    assert replace(ROW, devices=4, tokens_per_step=32768.0).device_s_per_token(1.0) == ROW.device_s_per_token(1.0)
    assert ROW.device_s_per_token(None) is None
    assert ROW.flops_per_token == pytest.approx(4e14 * 8 / 65536)


def test_workloads_are_told_apart():
    assert ROW.workload_key == replace(ROW, tokens_per_step=131072.0, model_flops=8e14).workload_key
    assert ROW.workload_key != replace(ROW, model_flops=8e14).workload_key
    assert replace(ROW, model_flops=None).workload_key is None
    assert replace(ROW, model_flops=None, workload="llama3-8b, 4096").workload_key == "llama3-8b, 4096"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ledger_s": {"matmul": 0.6}}, "adds up to 0.6"),
        ({"low_s": 0.95}, "low <= predicted <= high"),
        ({"high_s": 0.85}, "low <= predicted <= high"),
        ({"high_s": math.inf}, "low <= predicted <= high"),
        ({"low_s": None}, "nor a reason"),
        (NOTHING, "nor a reason"),
        ({"not_predicted": "no batch"}, "predicted, and not predicted"),
        ({**NOTHING, "fits": False, "not_predicted": "no batch"}, "predicted, and not predicted"),
        ({**NOTHING, "not_predicted": ""}, "no reason"),
        ({"part": "both"}, "expected one of fit, check"),
        ({"published_step_time_s": 0.0}, "more than nothing"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        replace(ROW, **changed)
