"""Spares: the worked number, Poisson by hand, a queue that is simulated."""

import itertools
import math

import numpy as np
import pytest

from jaxplan.goodput import spares


def test_the_worked_number_of_llama_3_405b() -> None:
    """7.76 failures a day, 24 h of repair: 13 spares for 95%, 15 for 99%."""
    mean = spares.in_repair(7.76, 86400)
    assert mean == pytest.approx(7.76)
    assert spares.needed(0.95, mean) == 13
    assert spares.needed(0.99, mean) == 15


def test_the_probability_is_poissons_sum() -> None:
    by_hand = sum(math.exp(-7.76) * 7.76**n / math.factorial(n) for n in range(14))
    assert spares.probability(13, 7.76) == pytest.approx(by_hand)
    assert spares.probability(12, 7.76) < 0.95 <= spares.probability(13, 7.76)


@pytest.mark.parametrize("repair", ["constant", "exponential", "long tail"])
def test_the_number_in_repair_does_not_ask_how_repairs_are_distributed(repair: str) -> None:
    """Palm: failures at rate 1, repairs of mean 5, looked at at random times."""
    chance = np.random.default_rng(0)
    failures = np.cumsum(chance.exponential(1, 60_000))
    lengths = {
        "constant": np.full(60_000, 5.0),
        "exponential": chance.exponential(5, 60_000),
        "long tail": 5 * chance.pareto(3, 60_000) * 2,
    }[repair]
    looks = chance.uniform(1000, 50_000, 4000)
    began, ended = np.sort(failures), np.sort(failures + lengths)
    busy = np.searchsorted(began, looks) - np.searchsorted(ended, looks)
    assert busy.mean() == pytest.approx(5, abs=0.2)
    assert (busy <= 8).mean() == pytest.approx(spares.probability(8, 5), abs=0.02)


def test_without_spares_a_failure_waits_for_its_repair_and_each_spare_shortens_the_wait() -> None:
    waits = [spares.wait_s(n, 7.76, 86400) for n in range(25)]
    assert waits[0] == 86400
    assert all(later < earlier for earlier, later in itertools.pairwise(waits))
    assert waits[15] == pytest.approx(86400 / 16 * (1 - spares.probability(14, 7.76)))


@pytest.mark.parametrize("wanted", [0, 1, -0.5, math.nan])
def test_a_probability_lies_between_0_and_1(wanted: float) -> None:
    with pytest.raises(ValueError, match="spares_probability"):
        spares.needed(wanted, 5)


@pytest.mark.parametrize("given", [(0, 86400), (7, 0), (math.nan, 86400), (7, -1)])
def test_impossible_rates_are_refused(given) -> None:
    with pytest.raises(ValueError, match="positive"):
        spares.in_repair(*given)
