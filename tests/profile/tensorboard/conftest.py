"""One real search of a tiny model, a real run of what it found, documents made by formulas."""

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


def python(*arguments: str, cwd: Path) -> str:
    """What Python says, run as users do; what it complained of where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def plan_home(tmp_path_factory) -> Path:
    """A folder for everything that these tests make."""
    return tmp_path_factory.mktemp("plan-tab")


@pytest.fixture(scope="session")
def plan_logdir(plan_home) -> Path:
    """`searched` is a real search with what it compiled and all that other commands say of its best plan; `ran` is a
    real run of it with its profile and what `compare` says of that; `made` and others are made up."""
    logdir, searched = plan_home / "jaxplan-runs", plan_home / "jaxplan-runs" / "searched"
    (plan_home / "tiny.toml").write_text(TINY)
    flags = "--mesh 1x8 --chip h100 --model tiny.toml --batch 16 --top 1 --partitions 0 --out searches"
    jaxplan = ("-m", "jaxplan")
    python(*jaxplan, "search", *flags.split(), cwd=plan_home)
    shutil.copytree(next((plan_home / "searches").iterdir()), searched)
    made.write(searched, "check.json", python(*jaxplan, "check", str(searched / "plan.json"), "--json", cwd=plan_home))
    python(*jaxplan, "goodput", str(searched / "plan.json"), "--tokens", "1e12", cwd=plan_home)
    flags = "--devices 8 --steps 3 --warmup 1 --no-parity --logdir ran"
    python(*jaxplan, "run", str(searched / "plan.json"), *flags.split(), cwd=plan_home)
    shutil.copytree(next((plan_home / "ran").iterdir()), logdir / "ran")
    python(*jaxplan, "compare", str(logdir / "ran"), "--json", cwd=plan_home)
    made.write(logdir / "made", "run.json", made.measured())
    made.write(logdir / "made", "candidates.json", made.candidates(5000))
    made.write(logdir / "made", "timeline.json", made.timeline())
    made.write(logdir / "made", "choice.json", made.choice())
    for name in ("plan.json", "explain.json", "search.json"):
        shutil.copy(searched / name, logdir / "made")
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
