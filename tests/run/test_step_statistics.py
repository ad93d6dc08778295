"""Distributions of step times against NumPy's, and a profiler's overhead by hand."""

import numpy as np
import pytest

from jaxplan.run.statistics import StepTimes, overhead


@pytest.mark.parametrize("count", [1, 2, 3, 10, 21])
def test_quantiles_are_numpys(count):
    values = np.random.default_rng(count).random(count)
    times = StepTimes(tuple(values))
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert times.quantile_s(share) == pytest.approx(np.quantile(values, share))
    found = times.to_json()
    assert found["median"] == pytest.approx(np.median(values)) and found["worst"] == values.max()
    assert found["p10"] <= found["median"] <= found["p90"] and found["all"] == list(values)


def test_none_are_no_distribution():
    with pytest.raises(ValueError, match="at least one"):
        StepTimes(())


def test_overhead_compares_medians():
    assert overhead([1.0, 2.0, 9.0], [2.2, 2.0]) == pytest.approx(0.05)
    assert overhead([1.0], []) is None and overhead([], [1.0]) is None
