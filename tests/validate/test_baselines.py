"""The naive baselines: medians over the fitting set, chips without runs, rows without FLOPs."""

from dataclasses import replace

import pytest
from made_rows import ROW as MADE

from jaxplan.validate.baselines import NO_FLOPS, NOT_FITTED, baselines, constant_mfu, mfu, roofline

ROW = replace(MADE, series=None, varies=None, part="fit", fits=True)
FITTED = [
    replace(ROW, published_step_time_s=0.4 / 0.5),      # an MFU of 50%
    replace(ROW, published_step_time_s=0.4 / 0.4),
    replace(ROW, published_step_time_s=0.4 / 0.1),
    replace(ROW, chip="tpu-v5p", published_step_time_s=0.4 / 0.6),
    replace(ROW, part="check", published_step_time_s=0.4 / 0.9),       # must not be looked at
]
JUDGED = [replace(ROW, part="check"), replace(ROW, part="check", chip="tpu-v5p"), replace(ROW, part="check", chip="x")]


def test_mfu_is_the_model_flops_over_the_peak_in_the_published_time():
    assert mfu(ROW) == pytest.approx(0.4)
    assert mfu(replace(ROW, published_step_time_s=None)) is None and mfu(replace(ROW, model_flops=None)) is None


def test_a_constant_mfu_for_each_chip():
    found = constant_mfu(JUDGED, FITTED)
    times = [row.predicted_step_time_s for row in found]
    # the medians of (50, 40, 10)%, of 60%, and, for a chip that was never fitted, of all four: 45%
    assert times == pytest.approx([0.4 / 0.4, 0.4 / 0.6, 0.4 / 0.45])
    assert all(row.low_s == row.high_s == row.predicted_step_time_s and row.fits is None for row in found)


def test_a_roofline_has_one_fraction():
    assert [row.predicted_step_time_s for row in roofline(JUDGED, FITTED)] == pytest.approx([0.4 / 0.45] * 3)


def test_what_a_baseline_cannot_predict_it_says():
    nothing = {"predicted_step_time_s": None, "low_s": None, "high_s": None, "ledger_s": {}, "fits": None}
    ours_cannot = replace(ROW, not_predicted="no batch", **nothing)
    (row,) = constant_mfu([replace(ROW, model_flops=None), ours_cannot], FITTED)
    assert row.not_predicted == NO_FLOPS
    (row,) = roofline([ROW], [])
    assert row.not_predicted == NOT_FITTED
    assert set(baselines([ROW], FITTED)) == {"constant MFU per chip", "roofline without communication"}
