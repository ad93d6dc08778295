"""Drawn runs: their length against the closed form, bursts, what is the same with one seed."""

import numpy as np
import pytest

from jaxplan.goodput import simulation
from jaxplan.goodput.expected import goodput
from jaxplan.goodput.failures import Law
from jaxplan.goodput.setting import Setting

SETTING = Setting(11_000, 1, 600, 50, 70)


def test_long_runs_take_as_long_as_the_closed_form_says() -> None:
    work, interval = 50 * 86400, 150
    lengths = simulation.lengths_s(SETTING, interval, work, first_start_s=600, runs=200, seed=1)
    expected = work / float(goodput(SETTING, interval))
    error = lengths.std(ddof=1) / np.sqrt(len(lengths))
    assert lengths.mean() == pytest.approx(expected, abs=4 * error + SETTING.restart_s)


def test_a_run_without_failures_takes_its_work_its_saves_and_its_start() -> None:
    """10 h of work with a save after each hour but the last: 9 blocks of 30 s."""
    setting = Setting(1e12, 30, 600)
    lengths = simulation.lengths_s(setting, 3600, 36_000, first_start_s=120, runs=5)
    assert lengths == pytest.approx([36_000 + 9 * 30 + 120] * 5)


def test_work_that_ends_within_an_interval() -> None:
    lengths = simulation.lengths_s(Setting(1e12, 30, 0), 3600, 5400, runs=3)
    assert lengths == pytest.approx([5430] * 3)


def test_short_runs_by_enumeration() -> None:
    """One interval of work w, no restart: a task that starts again takes M (exp(w / M) - 1) on average."""
    mean, work = 1000.0, 800.0
    lengths = simulation.lengths_s(Setting(mean, 1, 0), 1e9, work, runs=20_000, seed=3)
    expected = mean * np.expm1(work / mean)
    assert lengths.mean() == pytest.approx(expected, abs=4 * lengths.std() / np.sqrt(20_000))
    assert lengths.min() == pytest.approx(work)


def test_one_seed_gives_the_same() -> None:
    first, second = (simulation.lengths_s(SETTING, 150, 1e6, seed=4) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, simulation.lengths_s(SETTING, 150, 1e6, seed=5))


@pytest.mark.parametrize("shape", [0.5, 0.7, 1.0, 2.0])
def test_every_law_has_the_mean_that_was_asked_for(shape: float) -> None:
    times = Law(shape).draw(np.random.default_rng(0), 500.0, (200_000,))
    assert times.mean() == pytest.approx(500, abs=5 * times.std() / np.sqrt(200_000))


def test_bursts_change_little_where_restarts_are_short_and_cost_where_they_are_long() -> None:
    """In bursts many failures fall into restarts, which lose less work; so goodput is above that without memory."""
    even, burst = (simulation.goodput(SETTING, 150, Law(k), seed=2) for k in (1.0, 0.7))
    assert burst.low > even.high
    assert burst.value == pytest.approx(even.value, abs=0.02)


def test_a_wider_band_with_more_confidence_and_fewer_failures() -> None:
    def width(**given) -> float:
        found = simulation.goodput(SETTING, 150, **given)
        return found.high - found.low

    assert width(confidence=0.999) > width(confidence=0.9)
    assert width(failures=1000) > 5 * width(failures=100_000)


def test_runs_that_would_not_end_are_refused() -> None:
    with pytest.raises(ValueError, match="do not end"):
        simulation.lengths_s(Setting(100, 1, 5_000), 50, 1e6, runs=10)


def test_as_many_runs_as_can_be_drawn() -> None:
    assert simulation.affordable_runs(400) == simulation.RUNS
    assert simulation.FEWEST_RUNS <= simulation.affordable_runs(30_000) < simulation.RUNS
    assert simulation.affordable_runs(1e7) == 0
