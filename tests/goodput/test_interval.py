"""Intervals between saves: worked numbers, optima found by search, limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan.goodput.expected import goodput
from jaxplan.goodput.failures import Failures, rate_of
from jaxplan.goodput.interval import bounded_s, daly_s, exact_s, young_s
from jaxplan.goodput.setting import Setting

# Llama 3 405B: 419 unexpected interruptions in 54 days on 2,048 nodes (arXiv:2407.21783)
LLAMA = Failures(rate_of(419, 54, 2048), 2048)


def test_the_worked_numbers_of_llama_3_405b() -> None:
    """54 d / 419 = 11,135 s; by hand with C = 60 s."""
    assert LLAMA.mtbf_s == pytest.approx(11135.08, abs=0.01)
    assert LLAMA.per_1000_node_days == pytest.approx(3.7887, abs=1e-4)
    mean = LLAMA.mtbf_s
    assert young_s(60, mean) == pytest.approx(1155.9, abs=0.05)
    assert daly_s(60, mean) == pytest.approx(1116.3, abs=0.05)
    assert exact_s(60, mean) == pytest.approx(1116.3, abs=0.05)
    assert float(goodput(Setting(mean, 60, 600), exact_s(60, mean))) == pytest.approx(0.8526, abs=5e-5)


def test_dalys_own_examples() -> None:
    """Daly 2006, figures 3 to 5: C = 5 min; M = 24 h, 6 h, 15 min give 117, 57, 9.1 min."""
    for mean_h, minutes, off in ((24, 117, 0.5), (6, 57, 0.5), (0.25, 9.1, 0.05)):
        assert daly_s(300, mean_h * 3600) / 60 == pytest.approx(minutes, abs=off)


def test_daly_is_the_time_between_failures_where_a_save_takes_twice_as_long() -> None:
    assert daly_s(200, 100) == 100
    assert daly_s(1e6, 100) == 100


@settings(deadline=None)
@given(st.floats(1e-3, 1e4), st.floats(10, 1e7))
def test_the_exact_interval_satisfies_its_equation(block: float, mean: float) -> None:
    """(1 - tau / M) exp((tau + C) / M) = 1, with tau / M itself as the unknown where it is next to 1."""
    x, c = exact_s(block, mean) / mean, block / mean
    assert 0 < x <= 1
    if c < 15:
        assert (1 - x) * math.exp(x + c) == pytest.approx(1, rel=1e-5)


@settings(deadline=None)
@given(st.floats(0.1, 1e3), st.floats(1e3, 1e6), st.floats(0, 3e3), st.floats(0, 1e3), st.floats(0, 1e4))
def test_no_other_interval_is_better(block: float, mean: float, restart: float, write: float, wait: float) -> None:
    """The optimum is one by search as well, whatever restart, write and wait are."""
    setting = Setting(mean, block, restart, write, wait)
    best = exact_s(block, mean)
    others = best * np.geomspace(0.01, 100, 401)
    assert goodput(setting, best) >= goodput(setting, others).max() * (1 - 1e-12)
    assert goodput(setting, best) > float(goodput(setting, best * 1.5))


@settings(deadline=None)
@given(st.floats(1e-2, 1e2), st.floats(1e5, 1e7))
def test_the_formulas_meet_where_saves_are_short(block: float, mean: float) -> None:
    exact = exact_s(block, mean)
    assert daly_s(block, mean) == pytest.approx(exact, rel=1e-4)
    assert young_s(block, mean) == pytest.approx(exact, rel=0.05)


def test_free_saves_have_no_interval_and_nearly_free_ones_a_short_one() -> None:
    assert exact_s(0, 1000) == 0
    for part in (1e-14, 1e-9, 9e-8, 1.1e-7, 1e-6):
        assert exact_s(part, 1) == pytest.approx(math.sqrt(2 * part) - part * 2 / 3, rel=1e-6)


def test_an_interval_is_not_shorter_than_its_floor() -> None:
    assert bounded_s(114.2, 51) == 114.2
    assert bounded_s(20, 51) == 51


@pytest.mark.parametrize("formula", [young_s, daly_s, exact_s])
@pytest.mark.parametrize(
    ("block", "mean", "name"),
    [(-1, 100, "block_s"), (math.nan, 100, "block_s"), (1, 0, "mtbf_s"), (1, math.inf, "mtbf_s")],
)
def test_impossible_figures_are_named(formula, block: float, mean: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        formula(block, mean)
