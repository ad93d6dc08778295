"""Runs that published their useful share of time, beside what the closed form makes of their published inputs."""

import pytest

from jaxplan.goodput.published import AGREES, IN_REACH, MISSES, NOTHING, compared
from jaxplan.machine import failures

FOUND = {run.id: compared(run) for run in failures.published()}
#: What is known to be off or not to be compared, each with its reason in the file; a change of it is a change of model.
NOT_REACHED = {"rsc2-100000": MISSES, "ft-hsdp-sync": MISSES}
NOT_COMPARED = {"bloom-176b", "gemini-ultra-before", "gemini-ultra-after"}


def test_every_run_is_there_and_its_reason_is_told() -> None:
    assert len(FOUND) == len(failures.published()) >= 11
    for run in failures.published():
        if FOUND[run.id].verdict in (MISSES, NOTHING):
            assert run.explained


@pytest.mark.parametrize("id", sorted(set(FOUND) - set(NOT_REACHED) - NOT_COMPARED))
def test_runs_agree_or_are_in_reach(id: str) -> None:
    assert FOUND[id].verdict in (AGREES, IN_REACH)


def test_what_misses_is_known() -> None:
    assert {id for id, found in FOUND.items() if found.verdict == MISSES} == set(NOT_REACHED)
    assert {id for id, found in FOUND.items() if found.verdict == NOTHING} == NOT_COMPARED


def test_expected_ettr_of_rsc_1() -> None:
    """Kokolis et al. 2024: 16,384 GPUs at 6.50 failures per 1,000 node-days, MTTF 1.8 h; 0.93 with 5 min intervals."""
    low, high = FOUND["rsc1-16384-5min"].predicted
    assert low == high == pytest.approx(0.93, abs=0.005)
    assert FOUND["rsc1-16384-60min"].predicted[0] == pytest.approx(0.7, abs=0.02)


def test_mean_times_between_failures_of_rsc_1() -> None:
    """Their projections: 1.8 h at 16,384 GPUs, 0.23 h at 131,072."""
    from jaxplan.goodput.failures import Failures

    rate = failures.rate("rsc-1").value
    assert Failures(rate, 2048).mtbf_s / 3600 == pytest.approx(1.8, abs=0.05)
    assert Failures(rate, 16384).mtbf_s / 3600 == pytest.approx(0.23, abs=0.005)


def test_every_assumed_input_says_whose_it_is() -> None:
    for run in failures.published():
        assert not run.assumed or run.because
        assert run.source
        for name in run.assumed:
            assert getattr(run, name) is not None


def test_the_page_is_what_the_script_writes() -> None:
    """docs/goodput.md is written, not typed: a change of a formula or of a figure writes it again."""
    from pathlib import Path

    from jaxplan.report.goodput_published import page

    runs = failures.published()
    written = (Path(__file__).resolve().parents[2] / "docs" / "goodput.md").read_text(encoding="utf-8")
    assert written == page(runs, [FOUND[run.id] for run in runs], failures.rates())
