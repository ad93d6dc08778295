"""The examples run as their readers run them: as scripts, on virtual devices, with a plan and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("train_with_plan", "linen_model", "nnx_model")


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)


def losses(output: str) -> list[float]:
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step ")]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    done = run("tiny_plan", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "plan.json"


@pytest.fixture(scope="module")
def trained(plan: Path) -> subprocess.CompletedProcess:
    return run("train_with_plan", str(plan), cwd=plan.parent)


def test_every_example_is_tried() -> None:
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {*EXAMPLES, "tiny_plan", "my_model"}


def test_the_tiny_plan_knows_where_every_array_lies(plan: Path) -> None:
    leaves = json.loads(plan.read_text())["leaves"]
    # layers are stacked: embedding, unembed, final norm, 2 norms, 4 projections, 3 feed-forward matrices
    assert len(leaves["parameters"]) == 12
    # adamw: a count, and two moments of every parameter
    assert len(leaves["optimizer"]) == 1 + 2 * 12


@pytest.mark.parametrize("name", ["linen_model", "nnx_model"])
def test_an_example_trains_without_a_plan(name: str, tmp_path: Path) -> None:
    done = run(name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert len(found) == 8
    assert found[-1] < found[0]
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_the_decoder_trains_under_a_given_plan(trained: subprocess.CompletedProcess) -> None:
    assert trained.returncode == 0, trained.stderr
    found = losses(trained.stdout)
    assert len(found) == 8
    assert found[-1] < found[0]
    assert "layers.up (2, 64, 128) lies as P(None, 'fsdp', 'tensor'): (2, 32, 64) a device" in trained.stdout


def test_another_layout_trains_the_same(
    plan: Path, trained: subprocess.CompletedProcess, tmp_path: Path
) -> None:
    from jaxplan.plan import files

    data = json.loads(plan.read_text())
    for axis, size in zip(data["mesh"], (1, 8, 1), strict=True):
        axis["size"] = size
    data["microbatches"] = 1
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(data))
    assert files.read(other).stale
    here = run("train_with_plan", str(other), cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    assert "fsdp=8" in here.stdout
    # the same model, data and optimizer: the layout changes rounding only (bfloat16: 8 bits)
    assert losses(here.stdout) == pytest.approx(losses(trained.stdout), rel=2**-8)


def test_a_plan_that_is_none_is_said_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    done = run("linen_model", "plan.json", cwd=tmp_path)
    assert done.returncode != 0
    assert "plan.json is not valid JSON" in done.stderr.splitlines()[-1]


def test_the_example_of_a_workload_is_searched(tmp_path: Path) -> None:
    workload = f"{ROOT / 'examples' / 'my_model.py'}:program"
    flags = ["--workload", workload, "--batch", "16", "--partitions", "1", "--compiles", "0", "--json"]
    command = [sys.executable, "-m", "jaxplan", "search", "--mesh", "2x4", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tiers"]["partition"] == {"tried": 1, "ok": 1}
    assert any(plan["mesh"]["tensor"] > 1 or plan["mesh"]["fsdp"] > 1 for plan in result["plans"])
