"""Levers: elasticities against differences of the closed form, what halving brings."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan.goodput import two_level
from jaxplan.goodput.expected import goodput
from jaxplan.goodput.interval import exact_s
from jaxplan.goodput.sensitivity import elasticities, levers, two_level_levers
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.two_level import Local

SETTING = Setting(11_135, 20, 600, 0, 70)


SHORT = st.floats(0, 900)
FIELDS = {"save block": "block_s", "save write": "write_s", "restart": "restart_s", "repair wait": "wait_s"}


@settings(deadline=None)
@given(st.floats(1e3, 1e6), st.floats(0.1, 100), SHORT, SHORT, SHORT, st.floats(50, 5e3))
def test_elasticities_are_slopes_of_the_logarithm(mean, block, restart, write, wait, interval) -> None:
    setting = Setting(mean, block, restart, write, wait)
    found = elasticities(setting, interval)
    step = 1e-5

    def slope(up: Setting, down: Setting) -> float:
        ratio = float(goodput(up, interval)) / float(goodput(down, interval))
        return math.log(ratio) / (math.log1p(step) - math.log1p(-step))

    for name, field in FIELDS.items():
        value = getattr(setting, field)
        up, down = (replace(setting, **{field: value * f}) for f in (1 + step, 1 - step))
        assert found[name] == pytest.approx(slope(up, down), abs=1e-5 * (1 + abs(found[name])))
    up, down = (replace(setting, mtbf_s=mean / f) for f in (1 + step, 1 - step))
    assert found["failure rate"] == pytest.approx(slope(up, down), abs=1e-5 * (1 + abs(found["failure rate"])))


def test_halving_by_hand() -> None:
    found = {lever.name: lever for lever in levers(SETTING, exact_s(20, 11_135), 0)}
    half = replace(SETTING, restart_s=300)
    then = float(goodput(half, exact_s(20, 11_135)))
    assert found["restart"].halved_goodput == pytest.approx(then)
    assert found["restart"].gain == pytest.approx(math.exp(300 / 11_135) - 1)
    rarer = replace(SETTING, mtbf_s=22_270)
    assert found["failure rate"].halved_goodput == pytest.approx(float(goodput(rarer, exact_s(20, 22_270))))


def test_the_largest_gain_comes_first_and_what_is_nothing_is_left_out() -> None:
    found = levers(SETTING, exact_s(20, 11_135), 0)
    assert [lever.gain for lever in found] == sorted((lever.gain for lever in found), reverse=True)
    assert "save write" not in {lever.name for lever in found}
    assert all(lever.elasticity < 0 < lever.gain for lever in found)


def test_a_floor_holds_back_what_a_shorter_save_brings() -> None:
    free, held = (
        {lever.name: lever.gain for lever in levers(SETTING, 2_000, floor)}["save block"] for floor in (0, 2_000)
    )
    assert held < free


def test_two_levels_have_the_local_levers_too() -> None:
    remote, local = Setting(11_135, 60, 600, 0, 70), Local(2, 120, 0.8)
    found = two_level_levers(remote, local, two_level.best(remote, local), 0)
    assert {"local restart", "local save block", "restart", "failure rate"} <= {lever.name for lever in found}
    assert all(lever.gain > 0 > lever.elasticity for lever in found)
