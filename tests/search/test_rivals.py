"""Rivals of the best plan against looking through all candidates."""

import numpy as np

from jaxplan.plan.sharding import AXES
from jaxplan.search.rivals import rivals


def test_a_rival_is_the_fastest_that_fits_and_differs_by_the_axis(ranking):
    best = int(ranking.order()[0])
    found = {rival.axis: rival for rival in rivals(ranking, best, ranking.value_s)}
    assert {"fsdp", "tensor", "stage"} <= set(found) <= set(AXES)
    for axis, rival in found.items():
        has = ranking.space.size_of(axis) > 1
        assert rival.without == has[best]
        others = np.flatnonzero(ranking.fits & (has != has[best]))
        assert has[rival.candidate] != has[best]
        assert ranking.value_s[rival.candidate] <= ranking.value_s[others].min() * 1.001     # ties: what hides least
        assert rival.slower_s == ranking.value_s[rival.candidate] - ranking.value_s[best]


def test_the_reason_is_the_entry_that_grows_most(ranking):
    best = int(ranking.order()[0])
    rival = next(rival for rival in rivals(ranking, best, ranking.value_s) if rival.axis == "tensor")
    mine, its = ranking.estimate(best).time_s, ranking.estimate(rival.candidate).time_s
    assert rival.entry_s == max(its.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *its})
