"""When a plan may use a schedule, by the conditions that each schedule's source states."""

import re

import pytest

from jaxplan.plan.schedule import REASONS, SCHEDULES, Schedule, reason, schedule

LEGAL = [
    ("gpipe", 4, 16, 1, 32),
    ("gpipe", 4, 1, 1, 32),        # fewer microbatches than stages: slow, not wrong
    ("gpipe", 1, 8, 1, 7),         # one stage is plain accumulation
    ("circular", 4, 4, 2, 32),
    ("circular", 4, 6, 2, 32),     # any number from p on
    ("1f1b", 4, 2, 1, 32),
    ("interleaved", 4, 8, 8, 32),
    ("zero-bubble", 4, 4, 1, 32),
    ("dualpipe", 4, 8, 1, 32),
    ("dualpipe", 4, 10, 1, 32),
]
ILLEGAL = [
    ("1f1b", 1, 8, 1, 8, "only gpipe runs on a single stage"),
    ("circular", 1, 8, 2, 8, "only gpipe runs on a single stage"),
    ("gpipe", 4, 16, 2, 32, "the schedule takes no repeats"),
    ("1f1b", 4, 16, 2, 32, "the schedule takes no repeats"),
    ("zero-bubble", 4, 16, 2, 32, "the schedule takes no repeats"),
    ("dualpipe", 4, 16, 2, 32, "the schedule takes no repeats"),
    ("circular", 4, 16, 1, 32, "the schedule needs repeats"),
    ("interleaved", 4, 16, 1, 32, "the schedule needs repeats"),
    ("gpipe", 5, 16, 1, 32, "stages do not divide the layers"),
    ("interleaved", 4, 16, 3, 32, "stages times repeats do not divide the layers"),
    ("circular", 4, 3, 2, 32, "circular needs as many microbatches as stages"),
    ("interleaved", 4, 6, 2, 32, "interleaved needs microbatches in multiples of the stages"),
    ("zero-bubble", 4, 3, 1, 32, "zero-bubble needs as many microbatches as stages"),
    ("dualpipe", 3, 16, 1, 33, "dualpipe needs an even number of stages"),
    ("dualpipe", 4, 9, 1, 32, "dualpipe needs an even number of microbatches"),
    ("dualpipe", 4, 6, 1, 32, "dualpipe needs twice as many microbatches as stages"),
]


@pytest.mark.parametrize("plan", LEGAL)
def test_legal(plan):
    assert reason(*plan) == ""


@pytest.mark.parametrize("plan", ILLEGAL)
def test_illegal_says_why(plan):
    *counts, why = plan
    assert reason(*counts) == why


def test_every_sentence_is_given_somewhere_and_serves_as_a_key():
    assert {why for *_, why in ILLEGAL} == set(REASONS)
    assert not [why for why in REASONS if re.search(r"\d", why)]


def test_only_the_two_that_our_program_runs_are_executable():
    assert [name for name, known in SCHEDULES.items() if known.executable] == ["gpipe", "circular"]


def test_only_dualpipe_holds_parameters_twice():
    # DeepSeek-V3, arXiv:2412.19437, table 2: 1x, 1x, 2x
    assert {name for name, known in SCHEDULES.items() if known.parameter_copies == 2} == {"dualpipe"}


def test_names_are_keys_and_sources_are_papers():
    for name, known in SCHEDULES.items():
        assert schedule(name) is known and known.name == name
        assert re.search(r"arXiv:\d{4}\.\d{5}", known.source)


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"schedule must be one of gpipe, circular, .*, got 'pipedream'"):
        schedule("pipedream")
    with pytest.raises(ValueError, match="got 'pipedream'"):
        reason("pipedream", 2, 2, 1, 2)


@pytest.mark.parametrize("counts", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_counts_below_one_are_refused(counts):
    with pytest.raises(ValueError, match="at least 1"):
        reason("gpipe", *counts)


def test_a_device_holds_one_stage_or_two():
    with pytest.raises(ValueError, match="parameter_copies must be 1 or 2"):
        Schedule("x", False, False, "why", "source", parameter_copies=3)
