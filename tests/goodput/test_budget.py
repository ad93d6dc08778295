"""Days and money by hand."""

import math

import pytest

from jaxplan.goodput.budget import Budget, Work

WORK = Work(15.6e12, 16e6, 5.0)


def test_days_and_money_by_hand() -> None:
    """975,000 steps of 5 s are 56.42 days of work; at 90% and 10 min of start 62.69; 16,504 chips at 2.5."""
    assert WORK.steps == 975_000
    found = Budget(WORK, 0.9, 600, 16_384, 120, 2.5)
    assert found.total_s == pytest.approx(975_000 * 5 / 0.9 + 600)
    assert found.days == pytest.approx(62.70, abs=0.01)
    assert found.money == pytest.approx(16_504 * found.days * 24 * 2.5)


def test_part_of_a_step_is_a_step() -> None:
    assert Work(101, 100, 1).steps == 2


def test_no_price_no_money() -> None:
    assert Budget(WORK, 0.9, 0, 8).money is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"goodput": 0}, "goodput"), ({"goodput": 1.1}, "goodput"), ({"chips": 0}, "chips"),
        ({"price_per_chip_hour": -1}, "price"), ({"price_per_chip_hour": math.nan}, "price"),
    ],
)
def test_impossible_budgets_are_named(change, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Budget(**{"work": WORK, "goodput": 0.9, "first_start_s": 0, "chips": 8, **change})


@pytest.mark.parametrize("work", [(0, 1, 1), (1, -1, 1), (1, 1, math.nan)])
def test_impossible_work_is_refused(work) -> None:
    with pytest.raises(ValueError, match="positive"):
        Work(*work)
