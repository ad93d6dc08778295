"""Statistics of errors against figures worked out by hand and by the standard library."""

import statistics
from dataclasses import replace

import pytest
from made_rows import ROW

from jaxplan.validate.statistics import devices_bucket, groups, parameters_bucket, step_statistics, worst

UNPREDICTED = replace(
    ROW, predicted_step_time_s=None, low_s=None, high_s=None, ledger_s={}, not_predicted="no batch", group="MoE"
)


def predicted(seconds, low=None, high=None, **changed):
    low, high = low or seconds, high or seconds
    made = {"predicted_step_time_s": seconds, "low_s": low, "high_s": high, "ledger_s": {"matmul": seconds}}
    return replace(ROW, **made, **changed)


def test_errors_by_hand():
    rows = [predicted(0.9, 0.8, 1.2), predicted(1.2, 1.1, 2.2), predicted(1.6, 0.5, 2.0), UNPREDICTED]
    rows.append(predicted(5.0, published_step_time_s=None))
    found = step_statistics(rows)
    assert (found.rows, found.predicted, found.count) == (5, 4, 3)
    assert found.mean_absolute_error == pytest.approx((0.1 + 0.2 + 0.6) / 3)
    assert found.mean_error == pytest.approx((-0.1 + 0.2 + 0.6) / 3)
    assert found.median_error == pytest.approx(0.2)
    assert found.worst_absolute_error == pytest.approx(0.6)
    assert found.coverage == pytest.approx(2 / 3)       # 1.0 lies in [0.8, 1.2] and [0.5, 2.0], not in [1.1, 2.2]
    assert found.median_high_over_low == pytest.approx(2.0)     # of 1.5, 2.0, 4.0


def test_the_95th_percentile_is_that_of_the_standard_library():
    errors = [0.013 * i * i for i in range(1, 42)]
    found = step_statistics([predicted(1 + error) for error in errors])
    expected = statistics.quantiles(errors, n=20, method="inclusive")[-1]
    assert found.p95_absolute_error == pytest.approx(expected)


def test_nothing_compared_has_no_figures():
    for rows in ([], [UNPREDICTED]):
        found = step_statistics(rows)
        assert found.count == 0 and found.mean_absolute_error is None and found.coverage is None


def test_every_row_is_in_one_group_of_each_kind():
    rows = [predicted(1.1, id="b", chip="tpu-v5p"), ROW, UNPREDICTED]
    found = groups(rows)
    assert found[0].by == found[0].name == "all"
    for by in {group.by for group in found}:
        assert sum(group.statistics.rows for group in found if group.by == by) == 3
    chips = {group.name: group.statistics for group in found if group.by == "chip"}
    assert chips["tpu-v5p"].mean_error == pytest.approx(0.1) and chips["h100-sxm"].mean_error == 0
    assert groups([], ["all", "chip"])[0].statistics.rows == 0 and len(groups([], ["all", "chip"])) == 1


@pytest.mark.parametrize(
    # parameters that the papers give: a token costs six FLOPs a parameter, and attention's besides
    ("parameters", "bucket"),
    [(1.2e9, "under 3 B"), (8.0e9, "3 to 13 B"), (70.6e9, "40 to 100 B"), (530e9, "100 B and")],
)
def test_models_by_size(parameters, bucket):
    row = replace(ROW, model_flops=6 * parameters * 65536 / 8)
    assert parameters_bucket(row).startswith(bucket)
    assert parameters_bucket(replace(row, model_flops=None)) == "not known"


def test_machines_by_size():
    found = [devices_bucket(replace(ROW, devices=count)) for count in (1, 8, 9, 1024, 1025)]
    assert found == ["1 to 8", "1 to 8", "9 to 64", "257 to 1,024", "more than 1,024"]


def test_sizes_are_shown_in_their_order():
    rows = [replace(ROW, devices=count) for count in (16384, 8, 512, 128)]
    found = [group.name for group in groups(rows, ["devices"])]
    assert found == ["1 to 8", "65 to 256", "257 to 1,024", "more than 1,024"]


def test_the_worst_come_first():
    rows = [predicted(1.5, id="b"), predicted(0.1, id="c"), predicted(1.2, id="d"), UNPREDICTED]
    assert [row.id for row in worst(rows, 2)] == ["c", "b"]
    assert worst(rows, 0) == ()
