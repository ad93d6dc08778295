"""The ledger: it adds up, its parts by hand and as they are drawn, its names."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan.goodput import badput, expected, two_level
from jaxplan.goodput.badput import SAVE, USEFUL, WASTED, Entry, Ledger
from jaxplan.goodput.restart import OTHER, PHASES, RESTORE, Phase, first_start_s, in_order, total_s
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.two_level import Local, Pattern

LENGTHS = st.lists(st.floats(0.1, 2000), min_size=len(PHASES), max_size=len(PHASES))


@settings(deadline=None)
@given(LENGTHS, st.floats(500, 1e6), st.floats(0.1, 100), st.floats(0, 500), st.floats(0, 5000), st.floats(10, 1e5))
def test_shares_add_up_and_useful_work_is_goodput(lengths, mean, block, write, wait, interval) -> None:
    phases = in_order([Phase(name, length) for name, length in zip(PHASES, lengths, strict=True)])
    setting = Setting(mean, block, total_s(phases), write, wait)
    found = badput.ledger(setting, max(interval, write), phases)
    assert math.fsum(entry.share for entry in found.entries) == pytest.approx(1, abs=1e-9)
    assert all(entry.share >= 0 for entry in found.entries)
    assert found[USEFUL] == pytest.approx(float(expected.goodput(setting, max(interval, write))), rel=1e-9)
    assert {entry.name for entry in found.entries} == {USEFUL, SAVE, WASTED, *PHASES}


def test_the_parts_by_hand() -> None:
    """M = 1000, C = 10, tau = 90, D = 20, 60 s of detection, 40 s of restore; E[N] = exp(-0.1) / (exp(0.1) - 1)."""
    phases = (Phase(OTHER, 60), Phase(RESTORE, 40))
    found = badput.ledger(Setting(1000, 10, 100, 0, 20), 90, phases)
    saves = math.exp(-0.1) / (math.exp(0.1) - 1)
    assert found[USEFUL] == pytest.approx(90 * saves / 1020)
    assert found[SAVE] == pytest.approx(10 * saves / 1020)
    assert found[OTHER] == pytest.approx((1000 * (1 - math.exp(-0.06)) + 20) / 1020)
    assert found[RESTORE] == pytest.approx(1000 * (math.exp(-0.06) - math.exp(-0.1)) / 1020)
    assert found[WASTED] == pytest.approx((1000 * math.exp(-0.1) - 100 * saves) / 1020)


def test_the_parts_as_they_are_drawn() -> None:
    setting, interval = Setting(2000, 15, 150, 30, 25), 200.0
    until = np.random.default_rng(0).exponential(2000, 400_000)
    restart = np.minimum(until, 150)
    saves = np.floor(np.maximum(0, until - 180) / 215)
    whole = until.sum() + 25 * len(until)
    found = badput.ledger(setting, interval, (Phase("initialization", 150),))
    assert found["initialization"] == pytest.approx(restart.sum() / whole, abs=3e-4)
    assert found[SAVE] == pytest.approx(15 * saves.sum() / whole, abs=3e-4)
    assert found[WASTED] == pytest.approx((until - restart - 215 * saves).sum() / whole, abs=6e-4)


def test_two_levels_add_up() -> None:
    remote, local, pattern = Setting(11_135, 60, 600, 0, 70), Local(2, 160, 0.8), Pattern(230, 11)
    start = Phase("initialization", 100)
    found = badput.two_level_ledger(
        remote, local, pattern, (start, Phase(RESTORE, 500)), (start, Phase(RESTORE, 60))
    )
    assert math.fsum(entry.share for entry in found.entries) == pytest.approx(1, abs=1e-9)
    assert found[USEFUL] == pytest.approx(two_level.goodput(remote, local, pattern))
    assert found[SAVE] / found[USEFUL] == pytest.approx((10 * 2 + 60) / (11 * 230))
    # every restart begins with the same 100 s, whatever it reads
    assert found["initialization"] == pytest.approx(11_135 * (1 - math.exp(-100 / 11_135)) / 11_205)


def test_every_standard_name_is_there_where_nothing_is_spent_under_it() -> None:
    found = badput.ledger(Setting(1000, 1, 0), 50, ())
    assert found.entries[0].name == USEFUL
    assert {entry.name: entry.share for entry in found.entries if entry.share == 0} == dict.fromkeys(PHASES, 0.0)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        Ledger((Entry(USEFUL, 0.9),))
    with pytest.raises(ValueError, match="add up to 1"):
        Ledger((Entry(USEFUL, 1.2), Entry(OTHER, -0.2)))


def test_phases_that_are_not_the_restart_are_refused() -> None:
    with pytest.raises(ValueError, match="phases must add up"):
        badput.ledger(Setting(1000, 1, 100), 50, (Phase(RESTORE, 90),))


def test_phases_come_in_their_order_and_a_first_start_detects_and_restores_nothing() -> None:
    found = in_order([Phase(RESTORE, 3), Phase("initialization", 2), Phase(OTHER, 1), Phase("data loading", 0)])
    assert [phase.seconds for phase in found] == [1, 2, 3]
    assert first_start_s(found) == 2


@pytest.mark.parametrize("given_", [("lunch", 1.0), (RESTORE, -1.0), (RESTORE, math.nan)])
def test_impossible_phases_are_named(given_) -> None:
    with pytest.raises(ValueError, match=given_[0]):
        Phase(*given_)
