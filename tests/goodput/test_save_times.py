"""Seconds of saves and restores from bytes and rates."""

import math

import pytest

from jaxplan.goodput.checkpoint import State, Storage, block_s, restore_s, save_s

STATE = State(5.67e12, 11.34e12)


def test_hosts_or_the_store_whichever_is_slower() -> None:
    """5.67 TB from 1,120 hosts: 50.6 s at 100 MB/s each, 28.35 s at 0.2 TB/s together."""
    assert save_s(STATE, Storage(100e6), 1120) == pytest.approx(5.67e12 / 1120 / 100e6)
    assert save_s(STATE, Storage(math.inf, 0.2e12), 1120) == pytest.approx(28.35)
    assert save_s(STATE, Storage(100e6, 0.2e12), 1120) == pytest.approx(50.625)


def test_a_restore_reads_every_replica() -> None:
    assert restore_s(STATE, Storage(100e6), 1120) == pytest.approx(2 * 50.625)


def test_the_block_is_a_hosts_part_over_its_link() -> None:
    assert block_s(STATE, 1120, 8 * 64e9) == pytest.approx(5.67e12 / 1120 / 512e9)


@pytest.mark.parametrize("rates", [(0, 1e9), (1e9, 0), (-1, 1e9), (math.nan, 1e9), (math.inf, math.inf)])
def test_impossible_rates_are_refused(rates) -> None:
    with pytest.raises(ValueError, match="bytes_per_s"):
        Storage(*rates)


@pytest.mark.parametrize("nbytes", [0, -1, math.nan])
def test_a_state_has_bytes(nbytes: float) -> None:
    with pytest.raises(ValueError, match="bytes"):
        State(nbytes, 1)
