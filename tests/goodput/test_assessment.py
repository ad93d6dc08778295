"""The whole answer: what the parts say is put together rightly, and what cannot be is refused."""

import math
from dataclasses import replace

import pytest

from jaxplan.goodput.assessment import Assessment, LocalSave, Question
from jaxplan.goodput.badput import USEFUL
from jaxplan.goodput.budget import Work
from jaxplan.goodput.failures import Failures, rate_of
from jaxplan.goodput.restart import RESTORE, Phase

QUESTION = Question(
    failures=Failures(rate_of(419, 54, 2048), 2048),
    kind="async",
    block_s=0.59,
    write_s=51,
    phases=(Phase("initialization", 300), Phase(RESTORE, 129)),
    chips_per_node=8,
    repair_s=86400,
    spares_probability=0.99,
    step_s=5.0,
    work=Work(15.6e12, 16e6, 5.0),
    price_per_chip_hour=2.5,
    shape=0.7,
)


def test_llama_3_405b_with_bytecheckpoints_saves() -> None:
    """tau = sqrt(2 x 0.59 x 11135) = 114.6 s, 23 steps of 5 s; waste by hand to first order."""
    found = Assessment(QUESTION)
    assert found.interval_steps == 23
    waste = 0.59 / 115 + (57.5 + 51 + 429 + found.setting.wait_s) / 11135
    assert found.first_order == pytest.approx(1 - waste, abs=1e-5)
    assert found.goodput == pytest.approx(1 / (1 + waste), abs=0.002)
    assert found.spares.count == 15
    assert found.simulated[0].holds(found.goodput)
    assert found.ledger[USEFUL] == pytest.approx(found.goodput)


def test_days_of_drawn_runs_hold_the_days_of_the_closed_form() -> None:
    found = Assessment(QUESTION)
    low, middle, high = found.days[0]
    assert found.budget is not None
    assert low < found.budget.total_s < high
    assert middle == pytest.approx(found.budget.total_s, rel=0.005)
    assert found.expected_failures == pytest.approx(7.76 * found.budget.days, rel=0.01)


def test_a_blocking_save_stops_training_for_all_of_it() -> None:
    found = Assessment(replace(QUESTION, kind="blocking"))
    assert found.setting.block_s == pytest.approx(51.59)
    assert found.setting.write_s == 0
    assert found.goodput < Assessment(QUESTION).goodput
    assert found.interval_s == pytest.approx(math.sqrt(2 * 51.59 * 11135), rel=0.05)


def test_no_save_before_the_last_is_durable() -> None:
    found = Assessment(replace(QUESTION, write_s=600))
    assert found.interval_s == 600
    young = next(answer for answer in found.answers if answer.name == "Young")
    assert "durable" in young.why_not


def test_the_floor_is_whole_steps() -> None:
    assert Assessment(replace(QUESTION, write_s=601)).interval_steps == 121


def test_a_local_level_saves_more_often_and_does_more() -> None:
    found = Assessment(replace(QUESTION, kind="blocking", local=LocalSave(1, 5, 0.8)))
    one = Assessment(replace(QUESTION, kind="blocking"))
    assert found.interval_s < one.interval_s < found.remote_interval_s
    assert found.goodput > one.goodput
    assert found.first_order is None
    assert found.simulated[0].holds(found.goodput)
    assert found.local is not None
    assert found.local.restart_s == 305


def test_with_fewer_spares_failures_wait() -> None:
    few, none = Assessment(replace(QUESTION, spare_nodes=8)), Assessment(replace(QUESTION, spare_nodes=0))
    assert Assessment(QUESTION).goodput > few.goodput > none.goodput
    assert none.setting.wait_s == 86400
    assert few.spares.reached < 0.99


def test_the_curve_has_its_top_at_the_best_interval() -> None:
    found = Assessment(replace(QUESTION, write_s=1, step_s=None))
    best = max(range(len(found.curve.goodput)), key=lambda i: found.curve.goodput[i])
    assert found.curve.interval_s[best] == pytest.approx(found.interval_s)
    assert list(found.curve.interval_s) == sorted(found.curve.interval_s)
    outside = [i for i, one in found.curve.checked if not one.holds(found.goodput_at(i))]
    assert len(outside) <= 1    # seven bands of 99%


def test_a_run_that_is_shorter_than_the_best_interval_is_saved_at_its_end() -> None:
    short = replace(QUESTION, work=Work(16e6 * 10, 16e6, 5.0))
    assert Assessment(short).interval_s == 50
    local = Assessment(replace(short, local=LocalSave(1, 5, 0.8)))
    assert local.interval_s <= local.remote_interval_s <= 50


def test_an_interval_of_the_users_with_a_local_level_waits_for_the_remote_save() -> None:
    found = Assessment(replace(QUESTION, write_s=3000, local=LocalSave(1, 5, 0.8), interval_s=20.0))
    assert found.interval_s == 20
    assert found.pattern.every >= 150


def test_runs_of_too_many_failures_have_no_spread() -> None:
    found = Assessment(replace(QUESTION, work=Work(1e18, 16e6, 5.0)))
    assert found.days == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interval_s": 20.0}, "interval_s must be at least 55"),
        ({"interval_s": 1e7}, "interval_s must be at most the run's 4.875e\\+06 s"),
        ({"interval_s": math.nan}, "interval_s"),
        ({"block_s": 0.0, "write_s": 0.0, "step_s": None, "work": None}, "free saves"),
        ({"phases": (Phase(RESTORE, 1e6),)}, "next to nothing"),
        ({"kind": "sometimes"}, "kind must be one of"),
        ({"spare_nodes": -1}, "spare_nodes"),
        ({"shape": 0.0}, "shape"),
        ({"repair_s": 0.0}, "repair_s"),
        ({"chips_per_node": 0}, "chips_per_node"),
        ({"spares_probability": 1.0}, "spares_probability"),
    ],
)
def test_what_cannot_be_is_refused(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Assessment(replace(QUESTION, **change))


@pytest.mark.parametrize("given", [(0, 8), (-1, 8), (math.nan, 8), (3, 0)])
def test_impossible_failures_are_refused(given) -> None:
    with pytest.raises(ValueError, match="positive"):
        Failures(*given)
