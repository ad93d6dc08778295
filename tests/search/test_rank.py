"""What a search estimates of a candidate is what the estimate of that plan alone says."""

import numpy as np
import pytest

from jaxplan.estimate.single import estimate_plan


def test_every_candidate_is_priced_as_it_is_alone(ranking, workload, table, machine):
    rows = np.random.default_rng(0).choice(len(ranking.space), 60, replace=False)
    for row in map(int, rows):
        plan = ranking.space.plan(row, machine, workload, "splash", {})
        alone = estimate_plan(plan, table)
        assert ranking.value_s[row] == pytest.approx(alone.value_s, rel=1e-9), plan.label
        assert ranking.total_bytes[row] == pytest.approx(alone.total_bytes, rel=1e-9), plan.label
        assert sum(ranking.estimate(row).time_s.values()) == pytest.approx(alone.value_s, rel=1e-9)
