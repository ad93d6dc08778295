"""`search --workload` and `check` from end to end, in a process of their own, as users run them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxplan.compile.environment import available
from jaxplan.plan.files import read

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "workload" / "user_programs"
# the partition tier alone, as on a machine where no target's compiler is installed
WITHOUT_COMPILER = """
import sys
from jaxplan.compile import tiers
from jaxplan.compile.environment import Availability
tiers.available = lambda platform: Availability(platform, "", "not installed", "pip install it")
from jaxplan.cli.main import main
main(sys.argv[1:])
"""


def jaxplan(*arguments: str, folder: Path, compiler: bool = False) -> subprocess.CompletedProcess:
    start = ["-m", "jaxplan"] if compiler else ["-c", WITHOUT_COMPILER]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAXPLAN_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, *start, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def search(program: str, folder: Path, *more: str, compiler: bool = False) -> tuple[dict, str]:
    flags = ["--mesh", "2x4", "--chip", "v5e", "--batch", "32", "--partitions", "1", "--top", "1", "--compiles", "1"]
    done = jaxplan("search", *flags, "--workload", program, "--json", *more, folder=folder, compiler=compiler)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("file", "seq", "dims"),
    [
        ("linen_lm", 32, "tensor shards heads 4, mlp 192, vocab 256"),
        ("nnx_vit", 1, "tensor shards heads 8, mlp 128"),
        ("conv_net", 2048, "tensor shards mlp 32 and 64"),
    ],
)
def test_a_users_program_is_searched_partitioned_and_written(file: str, seq: int, dims: str, tmp_path: Path) -> None:
    given = ["--seq", "32"] if seq == 32 else []
    found, said = search(f"{PROGRAMS / file}.py:program", tmp_path, *given)
    assert found["workload"]["model"] is None and found["workload"]["seq"] == seq
    assert found["tiers"]["partition"] == {"tried": 1, "ok": 1}
    assert f"{file}.py:program" in said and dims in said
    record = read(tmp_path / found["plans"][0]["plan"])
    assert record.plan.workload.reference == f"{PROGRAMS / file}.py:program"
    assert (record.plan.remat, record.plan.attention, record.plan.loss_chunks) == ("as-written", "as-written", 1)
    assert any(dims in sentence for sentence in record.assumptions)
    assert not record.stale and record.parameters and record.optimizer and record.batch


def test_check_tells_an_edit(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    shutil.copy(PROGRAMS / "conv_net.py", program)
    found, _ = search("mine.py:program", tmp_path)
    plan = found["plans"][0]["plan"]
    same = jaxplan("check", plan, folder=tmp_path)
    assert same.returncode == 0, same.stderr
    assert "changed" not in same.stdout
    program.write_text(program.read_text().replace("= (16, 32)", "= (16, 64)"))
    edited = jaxplan("check", plan, folder=tmp_path)
    assert edited.returncode == 0 and re.search("changed|edited", edited.stdout + edited.stderr)
    program.unlink()
    gone = jaxplan("check", plan, folder=tmp_path)
    assert gone.returncode == 2 and "there is no file" in gone.stderr and "Traceback" not in gone.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def program(batch, seq):\n    return broken(batch)\n", "NameError: name 'broken' is not defined"),
        ("def other(batch, seq): pass\n", "has no program"),
    ],
)
def test_what_is_wrong_in_the_users_code_is_told_by_the_users_code(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    done = jaxplan("search", "--mesh", "2x4", "--workload", "mine.py:program", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr and "jaxplan/" not in done.stderr
    assert not (tmp_path / "jaxplan-runs").exists()


@pytest.mark.compiler
@pytest.mark.skipif(not available("tpu").ok, reason=available("tpu").problem)
@pytest.mark.parametrize(("file", "seq"), [("linen_lm", 32), ("nnx_vit", 1), ("conv_net", 1)])
def test_a_users_program_is_compiled_for_its_machine(file: str, seq: int, tmp_path: Path) -> None:
    found, _ = search(f"{PROGRAMS / file}.py:program", tmp_path, "--seq", str(seq), compiler=True)
    assert found["tiers"]["compile"] == {"tried": 1, "ok": 1}
    best = next(plan for plan in found["plans"] if plan["memory_bytes"]["source"] == "compiled")
    assert best["fits"] and best["step_time_s"]["source"] == "compiled"
