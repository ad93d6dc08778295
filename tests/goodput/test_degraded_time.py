"""The long run of degraded jobs: chains by hand, Poisson's distribution, a walk through failures and repairs."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import poisson

from jaxplan.goodput import expected, spares
from jaxplan.goodput.assessment import Question
from jaxplan.goodput.degraded import Level, in_repair, level_of, over_time, planned_restart_s, undominated
from jaxplan.goodput.failures import Failures
from jaxplan.goodput.restart import OTHER, RESTORE, Phase
from jaxplan.goodput.setting import Setting

RATE, REPAIR_S = 1 / 7200, 3600.0       # half a unit in repair on average
FULL = Level(0, 1.0, RATE, 1.0)
QUESTION = Question(
    failures=Failures(10.0, 100),
    kind="blocking",
    block_s=60.0,
    write_s=0.0,
    phases=(Phase(OTHER, 100.0), Phase("initialization", 200.0), Phase(RESTORE, 50.0)),
    chips_per_node=8,
    repair_s=86400.0,
    spares_probability=0.99,
)


def test_two_plans_by_hand():
    # a = 1/2: weights 1, 1/2, and 1/8 where it stops: 8/13, 4/13, 1/13
    found = over_time([FULL, Level(1, 0.5, RATE, 1.0)], 0, REPAIR_S, 0.0)
    assert found.shares == pytest.approx((8 / 13, 4 / 13, 1 / 13))
    assert found.throughput == pytest.approx(10 / 13)


def test_fewer_units_fail_less():
    # of two slices one is left, which fails half as often: weights 1, 1/2, 1/16: 16/25, 8/25, 1/25
    found = over_time([FULL, Level(1, 0.5, RATE / 2, 1.0)], 0, REPAIR_S, 0.0)
    assert found.shares == pytest.approx((16 / 25, 8 / 25, 1 / 25))


def test_who_waits_without_spares_works_mtbf_of_mtbf_and_repair():
    assert over_time([FULL], 0, REPAIR_S, 0.0).throughput == pytest.approx(7200 / (7200 + 3600))


def test_returns_by_hand():
    # up from 1 missing to 0 as often as down: 8/13 of the time once in 7,200 s, each 72 s
    found = over_time([FULL, Level(1, 0.5, RATE, 1.0)], 0, REPAIR_S, 72.0)
    assert found.returns == pytest.approx(8 / 13 / 100)
    assert found.throughput == pytest.approx(10 / 13 * (1 - 8 / 1300))


def test_a_plan_that_bears_two_serves_one_missing_as_well():
    # weights 1, 1/2, 1/8, 1/48: of 79/48
    found = over_time([FULL, Level(2, 0.5, RATE, 1.0)], 0, REPAIR_S, 72.0)
    assert found.shares == pytest.approx((48 / 79, 30 / 79, 1 / 79))
    assert found.returns == pytest.approx(48 / 79 / 100)        # between one and two missing nothing restarts


def test_spares_come_before_smaller_plans():
    found = over_time([FULL, Level(1, 0.5, RATE, 1.0)], 1, REPAIR_S, 0.0)
    assert found.shares == pytest.approx((72 / 79, 6 / 79, 1 / 79))


def test_without_an_end_it_is_poissons():
    found = in_repair([RATE] * 30, REPAIR_S)
    assert found[:10] == pytest.approx(poisson.pmf(range(10), 0.5), rel=1e-9)


def test_spares_for_everything_leave_nothing_to_smaller_plans():
    plain, going_on = (over_time(levels, 12, REPAIR_S, 60.0) for levels in ([FULL], [FULL, Level(1, 0.5, RATE, 1.0)]))
    assert plain.throughput == pytest.approx(1, abs=1e-9) and going_on.throughput == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_walk_through_failures_and_repairs_agrees(fixed):
    """Whatever the repairs: always as long, or exponential. 3 spares' worth of levels, each with its own rate."""
    levels = [FULL, Level(1, 0.8, 0.9 * RATE, 1.0), Level(2, 0.5, 0.6 * RATE, 1.0)]
    spare, planned = 1, 30.0
    found = over_time(levels, spare, 2 * REPAIR_S, planned)
    chance = np.random.default_rng(3)
    clock, shares, ups, repairs = 0.0, np.zeros(4), 0, []
    for _ in range(120_000):
        missing = max(0, len(repairs) - spare)
        rate = levels[missing].failures_per_s if missing < 3 else 0.0
        fails = clock + chance.exponential(1 / rate) if rate else float("inf")
        back = repairs[0] if repairs else float("inf")
        shares[missing] += min(fails, back) - clock
        clock = min(fails, back)
        if fails < back:
            heapq.heappush(repairs, clock + (2 * REPAIR_S if fixed else chance.exponential(2 * REPAIR_S)))
        else:
            heapq.heappop(repairs)
            ups += missing in (1, 2)        # from where nothing ran the failure's own restart follows
    assert found.shares == pytest.approx(shares / clock, abs=0.01)
    assert found.returns == pytest.approx(ups * planned / clock, rel=0.03)


def test_useful_share_of_a_plan_has_no_wait_in_it():
    question = replace(QUESTION, spare_nodes=0, interval_s=3600.0)
    found = level_of(question, 1, 50, 0.4)
    mean = 86400 / (10.0 * 50 / 1000)
    alone = expected.goodput(Setting(mean, 60.0, 350.0), 3600.0)
    assert (found.lost, found.relative, found.failures_per_s) == (1, 0.4, pytest.approx(1 / mean))
    assert found.useful == pytest.approx(float(alone))


def test_a_planned_restart_has_nothing_to_detect():
    assert planned_restart_s(QUESTION) == pytest.approx(60 + 200 + 50)


def test_plans_that_need_more_and_give_no_more_are_left_out():
    one, two, three = (Level(lost, relative, RATE, 1.0) for lost, relative in ((1, 0.5), (2, 0.5), (3, 0.3)))
    assert undominated([three, FULL, one, two]) == (FULL, two, three)
    assert undominated([Level(1, 1.5, RATE, 1.0), FULL]) == (FULL, Level(1, 1.5, RATE, 1.0))


def test_waiting_agrees_with_the_mean_wait_of_a_failure():
    # `goodput.spares` without spares: each failure waits for its own repair
    wait = spares.wait_s(0, 0.5, REPAIR_S)
    assert over_time([FULL], 0, REPAIR_S, 0.0).throughput == pytest.approx(7200 / (7200 + wait))


@pytest.mark.parametrize("lost", [(1, 2), (0, 2, 1), (0, 0), ()])
def test_levels_out_of_order_are_refused(lost):
    with pytest.raises(ValueError, match="levels must begin"):
        over_time([Level(n, 1.0, RATE, 1.0) for n in lost], 0, REPAIR_S, 0.0)
