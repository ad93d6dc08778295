"""One real search of a tiny model, one real profile, and documents made by formulas, for all tests of the Plan tab."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made_documents as made
import pytest

ROOT = Path(__file__).resolve().parents[3]
TINY = """
name = "tiny"
source = "made up"
date = "2026-12"
layers = 2
embed = 64
mlp = 128
heads = 4
kv_heads = 4
head_dim = 16
vocab = 256
default_seq = 128
"""
PROFILE = """
import sys, jax, jax.numpy as jnp
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
x = jnp.ones((128, 128))
step(x).block_until_ready()
with jax.profiler.trace(sys.argv[1], profiler_options=options):
    step(x).block_until_ready()
"""


def python(*arguments: str, cwd: Path) -> None:
    """Runs Python as users do, and shows what it said where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="session")
def plan_home(tmp_path_factory) -> Path:
    """A folder for everything that these tests make."""
    return tmp_path_factory.mktemp("plan-tab")


@pytest.fixture(scope="session")
def plan_logdir(plan_home) -> Path:
    """`searched` is a real search with what it compiled, `ran` has a real profile, `made` and `broken` are made up."""
    logdir = plan_home / "jaxplan-runs"
    (plan_home / "tiny.toml").write_text(TINY)
    flags = "--mesh 1x8 --chip h100 --model tiny.toml --batch 16 --top 1 --partitions 0 --out searches"
    python("-m", "jaxplan", "search", *flags.split(), cwd=plan_home)
    shutil.copytree(next((plan_home / "searches").iterdir()), logdir / "searched")
    python("-c", PROFILE, "profiled", cwd=plan_home)
    profile = next((plan_home / "profiled").rglob("*.xplane.pb"))
    session = logdir / "ran" / "plugins" / "profile" / "run"
    session.mkdir(parents=True)
    shutil.copy(profile, session)
    made.write(logdir / "ran", "run.json", made.measured("run"))
    made.write(logdir / "made", "candidates.json", made.candidates(5000))
    for name in ("plan.json", "explain.json", "search.json"):
        shutil.copy(logdir / "searched" / name, logdir / "made")
    made.write(logdir / "made", "timeline.json", made.timeline())
    break_documents(logdir)
    return logdir


def break_documents(logdir: Path) -> None:
    """Runs in which something is wrong, each in its own way."""
    whole = (logdir / "searched" / "search.json").read_text()
    made.write(logdir / "cut", "search.json", whole[: len(whole) // 2])
    made.write(logdir / "nan", "run.json", '{"schema": "jaxplan.run/1", "loss": [NaN]}')
    made.write(logdir / "newer", "search.json", {"schema": "jaxplan.search/9"})
    short = made.candidates(10)
    short["columns"]["mfu"].pop()
    made.write(logdir / "short", "candidates.json", short)
    made.write(logdir / "strange", "run.json", json.dumps({"schema": "jaxplan.run/1", "step_time_s": {"all": 3}}))
