"""The environment of workers and what is said about the user's own settings."""

import pytest

from jaxplan.compile import environment as env
from jaxplan.errors import MissingError

DEVICES = "--xla_force_host_platform_device_count"


def test_the_number_of_virtual_devices_replaces_the_users_and_says_so():
    flags, notes = env.xla_flags(f"{DEVICES}=8 --xla_gpu_enable_x=true", 128)
    assert flags.split() == ["--xla_gpu_enable_x=true", f"{DEVICES}=128"]
    assert any("replaced by 128" in note for note in notes) and any("in force" in note for note in notes)


def test_nothing_is_said_where_the_user_set_nothing():
    assert env.xla_flags("", 4) == (f"{DEVICES}=4", ())
    assert env.environment(4, {}).notes == ()


def test_a_typographic_dash_is_found():             # jax#13148
    assert "typographic dash" in env.xla_flags("\u2014xla_dump_to=x", 1)[1][0]


def test_warnings_of_the_partitioner_are_seen_whatever_the_user_set():
    place = env.environment(2, {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "tpu"})
    theirs = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "tpu", "JAX_NUM_CPU_DEVICES": "3", "HOME": "/h"}
    whole = place.over(theirs)
    assert whole["TF_CPP_MIN_LOG_LEVEL"] == "0" and whole["JAX_PLATFORMS"] == "cpu" and whole["HOME"] == "/h"
    assert "JAX_NUM_CPU_DEVICES" not in whole


@pytest.mark.parametrize("count", [0, 2049])
def test_impossible_numbers_of_devices(count):
    with pytest.raises(ValueError, match=str(count)):
        env.environment(count, {})


def test_environments_compare_by_content():
    assert env.environment(8, {}) == env.environment(8, {}) != env.environment(4, {})
    assert len({env.environment(8, {}), env.environment(8, {})}) == 1


def test_variables_that_decide_the_program():
    parent = {"XLA_FLAGS": f"{DEVICES}=8 --xla_a=1", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "HOME": "/"}
    assert env.deciding_variables(parent) == {"XLA_FLAGS": "--xla_a=1", "JAX_ENABLE_X64": "1"}
    assert env.deciding_variables({"XLA_FLAGS": f"{DEVICES}=8"}) == {}


def installed(monkeypatch, versions, requires=("libtpu==0.0.42.* ; extra == 'tpu'", "numpy>=2")):
    monkeypatch.setattr(env, "version", versions.get)
    monkeypatch.setattr(env.importlib.metadata, "requires", lambda name: list(requires))


BASE = {"jax": "0.10.2", "jaxlib": "0.10.2"}


@pytest.mark.parametrize(
    ("platform", "more", "problem"),
    [
        ("cpu", {}, ""),
        ("tpu", {}, "libtpu) is not installed"),
        ("tpu", {"libtpu": "0.0.42.1"}, ""),
        ("tpu", {"libtpu": "0.0.50"}, "pins (0.0.42.*)"),
        ("cuda", {}, "CUDA plugin) is not installed"),
        ("cuda", {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}, ""),
        ("cuda", {"jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}, ""),
        ("cuda", {"jax-cuda13-plugin": "0.9.0", "jax-cuda13-pjrt": "0.9.0"}, "does not match jaxlib 0.10.2"),
        ("cuda", {"jax-cuda13-plugin": "0.10.2"}, "jax-cuda13-pjrt is not installed"),
    ],
)
def test_availability(monkeypatch, platform, more, problem):
    installed(monkeypatch, {**BASE, **more})
    found = env.available(platform)
    assert found.ok == (not problem) and problem in found.problem
    if problem:
        with pytest.raises(MissingError, match=r'pip install "jax\[\w+\]==0.10.2"'):
            env.require(platform)


def test_no_jax_at_all(monkeypatch):
    installed(monkeypatch, {})
    assert env.available("tpu").install == "pip install jax"


def test_pins_are_read_from_the_extra_that_is_asked_for(monkeypatch):
    pins = ("libtpu>=1 ; extra == 'other'", "libtpu==2.* ; extra == 'tpu'", "jaxlib<=3,>=2")
    installed(monkeypatch, BASE, pins)
    assert env.required_version("libtpu", extra="tpu") == "==2.*"
    assert env.required_version("jaxlib") == "<=3,>=2"
    assert env.required_version("nothing") is None


def test_versions_name_the_compiler():
    assert {"jax", "jaxlib"} <= set(env.versions("cpu"))
    assert not any("cuda" in name for name in env.versions("tpu"))
