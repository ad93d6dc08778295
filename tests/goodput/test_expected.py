"""The closed form: against walked runs, against drawn ones, its limits and the direction of every input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_runs import plain_run

from jaxplan.goodput import simulation
from jaxplan.goodput.expected import ettr, first_order_waste, goodput
from jaxplan.goodput.failures import Law
from jaxplan.goodput.interval import exact_s
from jaxplan.goodput.setting import Setting

SETTINGS = st.builds(
    Setting,
    mtbf_s=st.floats(600, 1e6),
    block_s=st.floats(0.1, 300),
    restart_s=st.floats(1, 3000),
    write_s=st.floats(0, 600),
    wait_s=st.floats(0, 3600),
)


def drawn(seed: int) -> tuple[Setting, float]:
    """A setting at random, over several powers of ten, and an interval near its best."""
    chance = np.random.default_rng(seed)
    mean = 10 ** chance.uniform(3, 6)
    setting = Setting(
        mtbf_s=mean,
        block_s=mean * 10 ** chance.uniform(-5, -1),
        restart_s=mean * 10 ** chance.uniform(-3, 0),
        write_s=mean * 10 ** chance.uniform(-4, -1),
        wait_s=mean * chance.choice([0.0, 0.01, 0.3]),
    )
    interval = exact_s(setting.block_s, mean) * 10 ** chance.uniform(-0.5, 0.5)
    return setting, max(interval, setting.write_s)


@pytest.mark.parametrize("seed", range(20))
def test_the_closed_form_lies_in_the_band_of_drawn_failures(seed: int) -> None:
    """Twenty settings at random; 99.9% bands, so that all twenty hold them in 98 of 100 choices of seeds."""
    setting, interval = drawn(seed)
    found = simulation.goodput(setting, interval, Law(), failures=100_000, seed=seed, confidence=0.999)
    assert found.low <= float(goodput(setting, interval)) <= found.high
    assert found.high - found.low < 0.05 * found.value + 0.002


@pytest.mark.parametrize("seed", [0, 3, 7, 11])
def test_walked_runs_agree(seed: int) -> None:
    """Event by event, with nothing of the package: within four standard errors of some thousand cycles."""
    setting, interval = drawn(seed)
    count, parts = 400, 10
    seeds = range(100 * seed, 100 * seed + parts)
    pieces = [plain_run(**vars(setting), interval_s=interval, failures=count, seed=one) for one in seeds]
    ratios = np.array([kept / time for kept, time in pieces])
    error = ratios.std(ddof=1) / math.sqrt(parts)
    whole = sum(kept for kept, _ in pieces) / sum(time for _, time in pieces)
    assert float(goodput(setting, interval)) == pytest.approx(whole, abs=4 * error)


def test_the_formula_of_blocking_saves_by_hand() -> None:
    """tau / [(M + D) exp(R / M) (exp((tau + C) / M) - 1)] with M = 1000, C = 20, R = 100, D = 50, tau = 180."""
    by_hand = 180 / (1050 * math.exp(0.1) * (math.exp(0.2) - 1))
    assert float(goodput(Setting(1000, 20, 100, 0, 50), 180)) == pytest.approx(by_hand, rel=1e-12)


def test_the_waste_of_asynchronous_saves_by_hand() -> None:
    """C / tau + (tau / 2 + T_save + R) / M, as in ByteCheckpoint's figures on Llama 3's failures, R = 600 s."""
    setting = Setting(11135, 0.59, 600, 51)
    by_hand = 0.59 / 114.2 + (57.1 + 51 + 600) / 11135
    assert float(first_order_waste(setting, 114.2)) == pytest.approx(by_hand, rel=1e-12)
    assert float(ettr(setting, 114.2)) == pytest.approx(1 - by_hand, rel=1e-12)


@settings(deadline=None)
@given(st.floats(1e-5, 3e-3))
def test_first_order_and_exact_meet_where_everything_is_short(part: float) -> None:
    """The waste in lost seconds per second of work, 1 / G - 1, is the first order's plus terms of the second."""
    setting = Setting(1e6, 1e6 * part**2, 1e6 * part, 1e6 * part / 2)
    interval = 1e6 * part * math.sqrt(2)
    waste = float(first_order_waste(setting, interval))
    assert 1 / float(goodput(setting, interval)) - 1 == pytest.approx(waste, rel=waste + 1e-6)


@settings(deadline=None)
@given(SETTINGS, st.floats(1, 1e5))
def test_goodput_is_a_share(setting: Setting, interval: float) -> None:
    assert 0 <= float(goodput(setting, interval)) < 1


@settings(deadline=None)
@given(SETTINGS, st.floats(1.01, 3), st.sampled_from(["failures", "block_s", "restart_s"]))
def test_worse_inputs_make_less_of_the_best(setting: Setting, factor: float, what: str) -> None:
    """Strictly less with more failures, longer saves, longer restarts, each with its own best interval."""
    values = {name: getattr(setting, name) for name in ("mtbf_s", "block_s", "restart_s", "write_s", "wait_s")}
    worse = values | ({"mtbf_s": setting.mtbf_s / factor} if what == "failures" else {what: values[what] * factor})

    def best(of: Setting) -> float:
        return float(goodput(of, exact_s(of.block_s, of.mtbf_s)))

    assert best(Setting(**worse)) < best(setting)


def test_nothing_overflows() -> None:
    """Intervals and restarts of a thousand times M do nothing useful, silently."""
    with np.errstate(all="raise", under="ignore"):
        assert float(goodput(Setting(10, 1, 20_000), 50_000)) == 0


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s must be positive"):
        goodput(Setting(1000, 1, 1), 0)


@pytest.mark.parametrize("name", ["block_s", "restart_s", "write_s", "wait_s"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Setting(**{"mtbf_s": 100.0, "block_s": 1.0, "restart_s": 1.0, name: value})
