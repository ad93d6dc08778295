"""Own times of nested operations and the sharing of instants, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxplan.profile.kinds import Class
from jaxplan.profile.ledger import segments, shares


def own(*spans: tuple[int, int, int]) -> list[float]:
    track, start, end = np.array(spans).T
    return segments(track, start, end - start).self_time(len(spans)).tolist()


def test_what_covers_others_keeps_only_what_they_leave() -> None:
    assert own((0, 0, 100), (0, 10, 30), (0, 30, 50), (0, 35, 40)) == [60, 20, 15, 5]
    assert own((0, 0, 10), (0, 10, 20), (1, 5, 15)) == [10, 10, 10]       # another thread covers nothing here
    assert own((0, 0, 10), (0, 0, 10)) == [0, 10]                          # the inner one of two alike
    assert own((0, 0, 10), (0, 5, 12)) == [5, 7]                           # clocks that round: nothing counts twice


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=14))
def test_own_times_add_up_to_the_time_that_tracks_are_busy(spans) -> None:
    track, start, length = (np.array(column) for column in zip(*spans, strict=True))
    busy = {(t, now) for t, begin, span in spans for now in range(begin, begin + span)}
    assert segments(track, start, length).self_time(len(spans)).sum() == len(busy)


def test_every_instant_is_given_once() -> None:
    group = [Class.COMPUTE, Class.COMPUTE, Class.COLLECTIVE, Class.COPY, Class.LOOP]
    label = np.array([0, 1, 2, 3, 4, 2])
    start = np.array([10, 20, 15, 40, 5, 70])
    end = np.array([30, 40, 50, 60, 65, 90])
    windows = np.array([[0, 66], [66, 100]])
    found = shares(label, group, start, end, windows, np.array([5, 70]))
    #  0- 5 host; 5-10 loop; 10-20 first; 20-30 both kinds of compute; 30-40 second; 40-50 collective (before the copy);
    # 50-60 copy; 60-65 loop; 65-66 idle | 66-70 host; 70-90 collective; 90-100 idle
    assert found.by_step.tolist() == [[15, 15, 10, 10, 10, 5, 1], [0, 0, 20, 0, 0, 4, 10]]
    assert found.by_step.sum(axis=1).tolist() == [66, 34]
    assert found.hidden(np.array([15, 70]), np.array([50, 90])).tolist() == [25, 0]


def test_a_step_without_operations_is_the_hosts() -> None:
    nothing = np.zeros(0, np.int64)
    found = shares(nothing, [Class.COMPUTE], nothing, nothing, np.array([[0, 10]]), np.array([4]))
    assert found.by_step.tolist() == [[0, 4, 6]]


@pytest.mark.parametrize("nested", [True, False])
def test_many_tracks_and_nesting_agree(nested) -> None:
    # the same operations on one track each, or with one loop around them: the leaves' own times are the same
    start, length = np.arange(10) * 7, np.full(10, 5)
    track = np.zeros(10, np.int64)
    if nested:
        start, length, track = (np.append(a, b) for a, b in ((start, 0), (length, 70), (track, 0)))
    assert segments(track, start, length).self_time(start.size)[:10].tolist() == [5] * 10
