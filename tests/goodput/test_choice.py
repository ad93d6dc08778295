"""Machine sizes beside each other: the front against a search through all pairs, deadlines, budgets, scaling."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan.goodput.assessment import Assessment, Question
from jaxplan.goodput.budget import Work
from jaxplan.goodput.choice import Choice, Option, option_of, pareto
from jaxplan.goodput.failures import Failures
from jaxplan.goodput.restart import RESTORE, Phase


def option(chips: int, days: float, chip_hours: float, money: float | None = None) -> Option:
    return Option(
        mesh=f"{chips}", name=f"chip {chips}", plan="fsdp", chips=chips, spare_chips=0, step_s=1.0, step_low_s=0.8,
        step_high_s=1.5, goodput=0.9, interval_s=100.0, total_s=days * 86400, chip_hours=chip_hours, money=money,
    )


SMALL, MIDDLE, LARGE = option(64, 80, 100.0, 250.0), option(128, 41, 110.0, 275.0), option(256, 30, 160.0, 400.0)
SLOW = option(96, 60, 130.0, 325.0)     # slower and dearer than MIDDLE
CHOICE = Choice((SMALL, SLOW, MIDDLE, LARGE), deadline_s=45 * 86400)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12))
def test_the_front_is_what_no_other_beats(pairs) -> None:
    options = [option(i + 1, float(days), float(cost)) for i, (days, cost) in enumerate(pairs)]
    front = pareto(options)
    points = {(one.total_s, one.cost) for one in front}
    for one in options:
        here = one.total_s, one.cost
        others = [(other.total_s, other.cost) for other in options]
        beaten = any(days <= here[0] and cost <= here[1] and (days, cost) != here for days, cost in others)
        assert (here in points) is not beaten
    assert len(points) == len(front)
    assert [one.total_s for one in front] == sorted(one.total_s for one in front)


def test_a_size_that_another_beats_is_not_on_the_front() -> None:
    assert CHOICE.front == (LARGE, MIDDLE, SMALL)


def test_the_deadline_and_the_budget() -> None:
    assert (CHOICE.cheapest, CHOICE.fastest) == (MIDDLE, LARGE)
    assert replace(CHOICE, most=300.0).fastest == MIDDLE
    assert replace(CHOICE, deadline_s=86400.0).cheapest is None
    assert Choice(CHOICE.options).cheapest == SMALL


def test_without_a_price_chip_hours_are_compared() -> None:
    assert option(8, 1, 24.0).cost == 24.0
    assert option(8, 1, 24.0, 60.0).cost == 60.0


def test_scaling_is_chip_hours_beside_the_smallest_machine() -> None:
    assert CHOICE.scaling(SMALL) == 1
    assert CHOICE.scaling(LARGE) == pytest.approx(100 / 160)


def test_the_days_bounds_are_those_of_the_step() -> None:
    assert SMALL.low_s == pytest.approx(0.8 * SMALL.total_s)
    assert SMALL.high_s == pytest.approx(1.5 * SMALL.total_s)
    with pytest.raises(ValueError, match="step_s must lie between"):
        replace(SMALL, step_low_s=1.2)


def test_the_row_of_an_assessment() -> None:
    question = Question(
        Failures(3.8, 16), "async", 0.5, 30, (Phase(RESTORE, 100),), 8, 86400, 0.99,
        step_s=2.0, work=Work(1e12, 4e6, 2.0), price_per_chip_hour=3.0,
    )
    found = Assessment(question)
    row = option_of("16x8", "h100 16x8", "fsdp=128", found, 1.8, 2.4)
    assert found.budget is not None
    assert (row.chips, row.spare_chips) == (128, 8 * found.spares.count)
    assert row.money == pytest.approx(3.0 * (row.chips + row.spare_chips) * row.total_s / 3600)
    assert row.days == pytest.approx(250_000 * 2 / found.goodput / 86400, rel=1e-3)
    with pytest.raises(ValueError, match="budget of tokens"):
        option_of("16x8", "", "", Assessment(replace(question, work=None)), 1, 3)
