"""Two levels of checkpoints: against one level, against drawn failures, against the literature's first order."""

import math

import numpy as np
import pytest

from jaxplan.goodput import expected, two_level
from jaxplan.goodput.interval import exact_s, young_s
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.two_level import Local, Pattern

REMOTE = Setting(11_135, 60, 600)
LOCAL = Local(2, 120, 0.8)


@pytest.mark.parametrize("seed", range(8))
def test_the_closed_form_agrees_with_drawn_failures(seed: int) -> None:
    chance = np.random.default_rng(seed)
    mean = 10 ** chance.uniform(3.5, 5.5)

    def part(low: float, high: float) -> float:
        return mean * 10 ** chance.uniform(low, high)

    remote = Setting(mean, part(-3, -1.5), part(-2, -0.5), 0.0, 0.01 * mean)
    local = Local(part(-4, -3), part(-3, -1), chance.uniform(0.2, 0.95))
    pattern = Pattern(part(-2, -1), int(chance.integers(1, 12)))
    value, error = two_level.simulated(remote, local, pattern, seed=seed)
    assert two_level.goodput(remote, local, pattern) == pytest.approx(value, abs=3.9 * error)


def test_with_one_interval_and_the_same_restart_it_is_one_level() -> None:
    local = Local(5, REMOTE.restart_s, 0.3)
    one = float(expected.goodput(REMOTE, 900))
    assert two_level.goodput(REMOTE, local, Pattern(900, 1)) == pytest.approx(one, rel=1e-12)


def test_with_local_saves_that_serve_all_it_is_the_local_level() -> None:
    """q to 1, remote saves that cost what local ones do: one level with the local block and restart."""
    remote = Setting(11_135, 2, 600)
    local = Local(2, 120, 1 - 1e-12)
    one = float(expected.goodput(Setting(11_135, 2, 120), 230))
    assert two_level.goodput(remote, local, Pattern(230, 7)) == pytest.approx(one, rel=1e-6)


def test_the_first_order_is_young_on_each_level() -> None:
    found = two_level.first_order(REMOTE, LOCAL)
    assert found.interval_s == pytest.approx(young_s(2, 11_135 / 0.8))
    assert found.remote_interval_s == pytest.approx(young_s(60, 11_135 / 0.2), rel=0.05)


def test_its_overhead_is_the_sum_over_levels() -> None:
    """Benoit et al. 2017: sum of sqrt(2 lambda C), in the limit of short costs and no restart."""
    remote, local = Setting(1e8, 100, 0), Local(1, 0, 0.5)
    found = two_level.best(remote, local)
    overhead = math.sqrt(2 * 0.5e-8 * 1) + math.sqrt(2 * 0.5e-8 * 100)
    assert 1 / two_level.goodput(remote, local, found) - 1 == pytest.approx(overhead, rel=0.01)


def test_no_pattern_nearby_is_better() -> None:
    found = two_level.best(REMOTE, LOCAL)
    best = two_level.goodput(REMOTE, LOCAL, found)
    for factor in np.geomspace(0.2, 5, 41):
        for every in range(1, 40):
            assert two_level.goodput(REMOTE, LOCAL, Pattern(found.interval_s * factor, every)) <= best * (1 + 1e-6)


def test_a_local_level_is_worth_something_and_a_useless_one_nothing() -> None:
    one = float(expected.goodput(REMOTE, exact_s(60, 11_135)))
    assert two_level.goodput(REMOTE, LOCAL, two_level.best(REMOTE, LOCAL)) > one + 0.03
    rare = Local(2, 600, 1e-9)
    assert two_level.goodput(REMOTE, rare, two_level.best(REMOTE, rare)) == pytest.approx(one, rel=1e-5)


def test_a_remote_save_is_durable_before_the_next() -> None:
    slow = Setting(11_135, 0.5, 600, write_s=2_000)
    assert two_level.best(slow, LOCAL).remote_interval_s >= 2_000 * (1 - 1e-9)


def test_late_durability_to_first_order() -> None:
    slow = Setting(11_135, 10, 600, write_s=100)
    pattern = Pattern(200, 8)
    value, error = two_level.simulated(slow, LOCAL, pattern, seed=2)
    assert two_level.goodput(slow, LOCAL, pattern) == pytest.approx(value, abs=4 * error + 1e-3)


def test_remote_restarts_as_they_are_drawn() -> None:
    """The share of remote restarts by drawing failures one by one."""
    remote, local = Setting(1000, 1, 700), Local(1, 100, 0.6)
    chance, away, count = np.random.default_rng(0), True, 0
    for _ in range(40_000):
        count += away
        finished = chance.exponential(1000) >= (700 if away else 100)
        away = (chance.random() >= 0.6) or (away and not finished)
    assert two_level.restarts(remote, local)[0] == pytest.approx(count / 40_000, abs=0.02)


def test_a_restart_that_never_ends_does_nothing_useful() -> None:
    hopeless = Setting(100, 1, 1e6)
    assert two_level.goodput(hopeless, LOCAL, two_level.best(hopeless, LOCAL)) == 0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Local(0, 1, 0.5), "local_block_s"),
        (lambda: Local(1, -1, 0.5), "local_restart_s"),
        (lambda: Local(1, 1, 1.0), "local_share"),
        (lambda: Local(1, 1, math.nan), "local_share"),
        (lambda: Pattern(0, 1), "interval_s"),
        (lambda: Pattern(1, 0), "every"),
    ],
)
def test_impossible_levels_are_named(make, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make()
