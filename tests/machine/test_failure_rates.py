"""The files of published failures: read, sourced, found by chip."""

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue, failures


def test_every_rate_has_a_source_and_one_is_the_default() -> None:
    assert all(rate.source and rate.date and rate.value > 0 for rate in failures.rates())
    assert [rate.id for rate in failures.rates() if rate.default] == ["llama3-405b"]


def test_the_chips_that_rates_name_are_known() -> None:
    known = {chip.id for chip in catalogue.chips()}
    assert {chip for rate in failures.rates() for chip in rate.chips} <= known


def test_published_rates() -> None:
    """419 in 54 days on 2,048 nodes; RSC-1 and RSC-2 as published."""
    assert failures.rate("llama3-405b").value == pytest.approx(1000 * 419 / (54 * 2048))
    assert failures.rate("RSC-1").value == 6.50
    assert failures.rate("rsc-2").value == 2.34


def test_rates_by_chip() -> None:
    assert failures.rate_of_chip("a100-80")[0].id == "rsc-1"
    assert failures.rate_of_chip("v5p") == (failures.rate("llama3-405b"), False)
    assert failures.rate_of_chip(None)[1] is False


def test_an_unknown_rate_names_what_there_is() -> None:
    with pytest.raises(InputError, match="rsc-1, rsc-2"):
        failures.rate("nobody")


def test_figures_that_were_not_read_again_say_so() -> None:
    defaults = failures.defaults()
    assert "(recalled)" in defaults.weibull_shape.citation
    assert "chosen" in defaults.repair_s.citation
