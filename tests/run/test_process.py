"""A run's process watched from outside: one that hangs is given up, one that dies is told about."""

import os

import pytest

from jaxplan.errors import InputError
from jaxplan.run import process as process_module
from jaxplan.run.job import Request
from jaxplan.run.process import RunProcess, variables

REQUEST = Request("plan.json", {}, 1, 1)
STEP = r'{"event": "step", "seconds": 0.001}'


def watched(tmp_path, monkeypatch, script):
    """(events, how it ended) of a process that is this shell script."""
    program = tmp_path / "run.sh"
    program.write_text(f"#!/bin/sh\nread request\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(process_module.sys, "executable", str(program))
    with RunProcess(REQUEST) as process:
        return [event["event"] for event in process.events()], process.ending


def test_a_step_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "HUNG_LEAST_S", 0.2)
    monkeypatch.setattr(process_module, "POLL_S", 0.05)
    events, ending = watched(tmp_path, monkeypatch, f"echo '{STEP}'; exec sleep 600")
    assert events == ["step"] and "nothing was heard of the run for 0 s: a step hangs" in ending.problem


@pytest.mark.parametrize(
    ("script", "told", "words"),
    [
        ("kill -9 $$", [], "killed from outside (SIGKILL: usually the system was out of memory)"),
        (f"echo '{STEP}'; echo why >&2; exit 3", ["step"], "exited with status 3"),
        (f"echo '{STEP}'; kill -ABRT $$", ["step"], "crashed with SIGABRT"),
    ],
)
def test_a_process_that_dies_leaves_what_it_told(tmp_path, monkeypatch, script, told, words):
    events, ending = watched(tmp_path, monkeypatch, script)
    assert events == told and words in ending.problem and "the run's process" in ending.problem
    assert "why" in ending.stderr or "why" not in script


def test_one_that_is_done_is_no_problem(tmp_path, monkeypatch):
    events, ending = watched(tmp_path, monkeypatch, """echo '{"event": "memory"}'; echo '{"event": "done"}'""")
    assert events == ["memory", "done"] and ending.problem == ""


def test_virtual_devices_are_a_matter_of_the_environment():
    given = {"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "tpu", "HOME": "/h"}
    found = variables(5, given)
    assert found["XLA_FLAGS"].split() == ["--xla_a=1", "--xla_force_host_platform_device_count=5"]
    assert found["JAX_PLATFORMS"] == "cpu" and found["HOME"] == "/h" and found["PYTHONPATH"]
    kept = variables(None, given)
    assert {name: kept[name] for name in given} == given and "JAX_PLATFORMS" not in variables(None, {})
    assert os.environ.get("XLA_FLAGS") != found["XLA_FLAGS"]
    assert variables(None, given, alone=True)["XLA_FLAGS"] == given["XLA_FLAGS"]
    assert variables(None, {}, alone=True)["XLA_FLAGS"] == "--xla_force_host_platform_device_count=8"
    assert "XLA_FLAGS" not in variables(None, {})
    with pytest.raises(InputError, match="--devices 0"):
        variables(0, given)
