"""Doctor: every line ok, missing with a command, or broken with a reason."""

import json

import pytest

from jaxplan.cli.doctor import doctor as command
from jaxplan.cli.doctor import line, to_json
from jaxplan.compile.cache import Cache
from jaxplan.compile.environment import Availability
from jaxplan.run import doctor as module
from jaxplan.run.doctor import Check, examine, works

GOOD = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "flax": "0.12.8",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.9",
    "numpy": "2.4.6",
}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A host with these packages and no compiler at all; `here(name=version)` changes them."""

    def set_versions(**changes):
        found = {**GOOD, **{name.replace("_", "-"): text for name, text in changes.items()}}
        monkeypatch.setattr(module, "version", lambda name: found.get(name))
        return {check.name: check for check in examine(Cache(tmp_path))}

    monkeypatch.setattr(module, "required_version", lambda name: "<=0.10.2,>=0.10.1")
    nothing = lambda p: Availability(p, "", f"no {p} compiler", f"pip install {p}")  # noqa: E731
    monkeypatch.setattr(module, "available", nothing)
    return set_versions


def test_versions_that_are_supported(here):
    checks = here()
    assert all(checks[name].state == "ok" for name in GOOD)


@pytest.mark.parametrize(
    ("changes", "name", "state", "fix"),
    [
        ({"flax": None}, "flax", "missing", 'pip install "flax>=0.12.8"'),
        ({"optax": "0.2.3"}, "optax", "broken", 'pip install "optax>=0.2.8"'),
        ({"jaxlib": "0.9.0"}, "jaxlib", "broken", 'pip install "jax==0.10.2"'),
        ({"jaxlib": None}, "jaxlib", "missing", 'pip install "jax==0.10.2"'),
    ],
)
def test_versions_that_are_not(here, changes, name, state, fix):
    checks = here(**changes)
    assert (checks[name].state, checks[name].fix) == (state, fix)
    assert not works(list(checks.values()))


def test_a_jax_that_was_not_tested_is_said(here):
    assert "not among the tested" in here(jax="0.11.0")["jax"].detail


def test_missing_compilers_come_with_their_command(here):
    checks = here()
    assert checks["compiler tpu"].state == "missing" and checks["compiler tpu"].fix == "pip install tpu"
    assert not works(list(checks.values()))         # the host's compiler is missing as well


def test_a_cache_that_cannot_be_written_is_broken(here, tmp_path):
    (tmp_path / "file").write_text("")
    checks = {check.name: check for check in examine(Cache(tmp_path / "file"))}
    assert checks["cache"].state == "broken" and "JAXPLAN_CACHE" in checks["cache"].fix


def test_the_optional_may_be_missing():
    checks = [Check("jax", "ok", "", required=True), Check("tensorboard", "missing", "not installed")]
    assert works(checks) and not works([*checks, Check("compiler cpu", "broken", "", required=True)])


def test_lines_and_json():
    check = Check("compiler tpu", "broken", "crashed", "pip install x", seconds=1.5)
    assert " ".join(line(check).split()) == "broken compiler tpu crashed in 1.50 s pip install x"
    assert json.loads(json.dumps(to_json([check])))["checks"][0]["seconds"] == 1.5


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("broken", 3)])
def test_the_exit_code_and_nothing_but_json_on_standard_output(monkeypatch, capsys, state, code):
    checks = [Check("jax", state, "x", required=True)]
    monkeypatch.setattr("jaxplan.cli.doctor.examine", lambda: iter(checks))
    assert command(as_json=True) == code
    assert json.loads(capsys.readouterr().out)["works"] == (code == 0)


def test_the_hosts_compiler_is_proven_by_compiling(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PLATFORMS", ("cpu",))
    found = {check.name: check for check in examine(Cache(tmp_path))}["compiler cpu"]
    assert found.state == "ok" and "proven" in found.detail
    assert found.seconds is not None and found.seconds > 0


def test_a_compiler_that_crashes_is_broken_with_its_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PLATFORMS", ("cpu",))
    found = {check.name: check for check in examine(Cache(tmp_path), limit_s=0.01)}["compiler cpu"]
    assert found.state == "broken" and "timed out" in found.detail
