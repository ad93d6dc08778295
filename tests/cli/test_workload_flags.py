"""Flags to a workload: what is assumed, what is refused."""

import pytest

from jaxplan.cli.request import workload_of
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.report.text import header


def asked(model="mixtral-8x7b", program=None, **experts):
    machine = catalogue.machine("1x8", "h100")
    return workload_of(machine, model, None, program, 16, 4096, "adamw", experts)


def test_how_experts_are_run_is_assumed_aloud():
    work = asked(capacity_factor=2.0, dispatch=None)
    assert (work.dispatch, work.capacity_factor, work.hot_expert_factor) == ("capacity", 2.0, 1.0)
    assert "dispatch" in work.defaults and "capacity_factor" not in work.defaults
    line = next(line for line in header(catalogue.machine("1x8", "h100"), work, None) if line.startswith("Experts"))
    assert "at most 2 times its even share" in line and "(default; --dispatch)" in line
    loose = asked(dispatch="dropless", hot_expert_factor=1.5)
    assert (loose.busiest_share, loose.room_factor) == (1.5, 1.0)
    assert (work.busiest_share, work.room_factor) == (1.0, 2.0)
    assert not set(asked("llama3-8b").defaults) & {"dispatch", "capacity_factor", "hot_expert_factor"}


@pytest.mark.parametrize(
    ("model", "experts", "message"),
    [
        ("llama3-8b", {"dispatch": "dropless"}, "--dispatch with llama3-8b"),
        ("mixtral-8x7b", {"dispatch": "dropped"}, "--dispatch dropped.*capacity, dropless"),
        ("mixtral-8x7b", {"capacity_factor": 0.5}, "--capacity-factor 0.5.*at least 1"),
        ("mixtral-8x7b", {"hot_expert_factor": float("nan"), "dispatch": "dropless"}, "--hot-expert nan"),
        ("mixtral-8x7b", {"hot_expert_factor": 2.0}, "--hot-expert with a capacity"),
        ("mixtral-8x7b", {"capacity_factor": 2.0, "dispatch": "dropless"}, "--capacity-factor with --dispatch"),
    ],
)
def test_what_no_mixture_of_experts_could_do_is_refused(model, experts, message):
    with pytest.raises(InputError, match=message):
        asked(model, **experts)
