"""`search` as users meet it, at the partition tier on a tiny model: its JSON, refusals, folder, last words."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

import jaxplan.cli.folder as folder_module
from jaxplan.cli.main import main
from jaxplan.cli.request import attention_kernel, workload_of
from jaxplan.cli.search import Search
from jaxplan.cli.stamped import new_folder
from jaxplan.compile import tiers as tiers_module
from jaxplan.compile.environment import Availability
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.files import read
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import AXES
from jaxplan.report import text
from jaxplan.workload.shape import Workload

ROOT = Path(__file__).resolve().parents[2]
TINY = """
name = "tiny"
source = "made up"
date = "2026-11"
layers = 2
embed = 64
mlp = 128
heads = 4
kv_heads = 4
head_dim = 16
vocab = 256
default_seq = 128
"""
PARTS = ("params", "optimizer", "batch", "gradients", "activations", "workspace")
# the keys that the design fixes
KEYS = {"schema", "machine", "workload", "candidates", "feasible", "seconds", "plans"}
PLAN_KEYS = {"rank", "mesh", "roles", "remat", "microbatches", "fits", "memory_bytes", "step_time_s", "mfu"}
PLAN_KEYS |= {"tokens_per_s_per_chip", "bottleneck", "plan"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model and a cache; the first search in it fills the cache for the others."""
    made = tmp_path_factory.mktemp("home")
    (made / "tiny.toml").write_text(TINY)
    return made


@pytest.fixture
def run(home, tmp_path, monkeypatch, capsys):
    """Runs the command in this process, as where no target's compiler is installed: (exit code, output, errors)."""
    monkeypatch.setattr(tiers_module, "available", lambda p: Availability(p, "", f"no {p} compiler", "pip install it"))
    monkeypatch.setenv("JAXPLAN_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


@pytest.fixture
def tiny(home):
    return ("search", "--mesh", "1x8", "--chip", "h100", "--model", str(home / "tiny.toml"), "--partitions", "1")


def test_json_is_one_document_whose_figures_add_up(run, tiny, tmp_path):
    code, out, err = run(*tiny, "--json")
    found = json.loads(out)
    assert code == 0 and set(found) >= KEYS and found["schema"] == "jaxplan.search/1"
    tried = found["tiers"]["partition"]
    assert tried["ok"] == tried["tried"] >= 1 and "compile" not in found["tiers"] and "pip install it" in err
    times = [plan["step_time_s"]["value"] for plan in found["plans"]]
    assert times == sorted(times) and [plan["rank"] for plan in found["plans"]] == [1, 2, 3]
    for plan in found["plans"]:
        memory, time = plan["memory_bytes"], plan["step_time_s"]
        assert set(plan) >= PLAN_KEYS and plan["fits"]
        assert sum(memory[part] for part in PARTS) == memory["total"] <= memory["capacity"]
        assert min(memory[part] for part in PARTS) >= 0
        assert time["low"] <= time["value"] <= time["high"]
        assert read(tmp_path / plan["plan"]).plan.sizes == plan["mesh"]
    assert json.loads((tmp_path / found["plans"][0]["plan"]).with_name("search.json").read_text()) == found


def test_candidates_are_every_plan_that_fits(run, tiny, tmp_path):
    found = json.loads(run(*tiny, "--json")[1])
    folder = (tmp_path / found["plans"][0]["plan"]).parent
    told = json.loads((folder / "candidates.json").read_text())
    columns = {
        name: [column["values"][code] for code in column["codes"]] if isinstance(column, dict) else column
        for name, column in told["columns"].items()
    }
    assert {len(column) for column in columns.values()} == {told["count"]} and told["feasible"] >= found["feasible"]
    assert told["candidates"] == found["candidates"] and columns["step_time_s"] == sorted(columns["step_time_s"])
    for i in range(told["count"]):
        assert columns["low_s"][i] <= columns["step_time_s"][i] <= columns["high_s"][i]
        sizes = {axis: columns[axis][i] for axis in AXES if columns[axis][i] > 1}
        assert columns["mesh"][i] == " ".join(f"{axis}={size}" for axis, size in sizes.items())
        assert math.prod(sizes.values()) == 8
    for plan in found["plans"]:
        i = columns["plan"].index(Path(plan["plan"]).name)
        assert columns["memory_bytes"][i] == plan["memory_bytes"]["total"]
        assert columns["step_time_s"][i] == pytest.approx(plan["step_time_s"]["value"], rel=1e-3)
        assert columns["mfu"][i] == pytest.approx(plan["mfu"], rel=1e-3)
        assert columns["remat"][i] == plan["remat"] and columns["microbatches"][i] == plan["microbatches"]
    for number in ("", "-2", "-3"):
        explained = json.loads((folder / f"explain{number}.json").read_text())
        value_s = read(folder / f"plan{number}.json").time.value_s
        assert explained["step_time_s"]["value"] == pytest.approx(value_s, rel=1e-12)


def test_a_warm_search_says_the_same_without_jax(run, tiny, home):
    def answer():
        plans = json.loads(run(*tiny, "--json")[1])["plans"]
        return [{key: value for key, value in plan.items() if key != "plan"} for plan in plans]

    assert answer() == answer()
    code = f"""
import sys
from jaxplan.compile import tiers
from jaxplan.compile.environment import Availability
tiers.available = lambda p: Availability(p, "", f"no {{p}} compiler", "pip install it")
from jaxplan.cli.main import main
try:
    main({list(tiny)!r})
except SystemExit:
    print([name for name in ("jax", "jaxlib", "flax") if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAXPLAN_CACHE": str(home / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "known before" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mesh", "7x13"], ["7x13 is not a TPU v5e slice", "8x8 (64), 8x16 (128)"]),
        (["--mesh", "axb"], ["'axb' is not a shape"]),
        (["--mesh", "2x2", "--model", "gpt9"], ["unknown model 'gpt9'", "gpt2"]),
        (["--mesh", "2x2", "--top", "0"], ["--top 0", "at least 1"]),
        (["--mesh", "2x2", "--partitions", "-1"], ["--partitions -1"]),
        (["--mesh", "2x2", "--compiles", "-1"], ["--compiles -1"]),
        (["--mesh", "2x2", "--model", "gpt2", "--seq", "1000"], ["--seq 1000", "multiple of 128", "--seq 1024"]),
        (["--mesh", "1x1", "--chip", "h100", "--seq", "1"], ["--seq 1", "at least 2"]),
        (["--mesh", "2x2", "--batch", "many"], ["--batch", "valid integer"]),
        ([], ["--mesh", "--help"]),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(run, tmp_path, arguments, words):
    code, out, err = run("search", *arguments)
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert err.startswith("error: ") and err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_batch_that_nothing_divides(run, tiny, tmp_path):
    code, out, err = run(*tiny, "--batch", "7")
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "error: batch 7 over 8 devices" in err and "--batch 8" in err


def test_what_fits_nowhere_names_the_nearest_miss_and_what_would_fit(run, home):
    # 2 layers x 3 x 16384 x 65536 = 6.4 B parameters: 26 GB of float32, as much of gradients, and AdamW's two moments,
    # which the device needs for the update at the latest; an A100 has 40 GB
    (home / "wide.toml").write_text(TINY.replace("embed = 64", "embed = 16384").replace("mlp = 128", "mlp = 65536"))
    arguments = ("search", "--mesh", "1x1", "--chip", "a100-40", "--model", str(home / "wide.toml"))
    code, out, _ = run(*arguments, "--json")
    found = json.loads(out)
    assert code == 1 and found["feasible"] == 0
    miss = found["plans"][0]
    assert not miss["fits"] and miss["plan"] is None and miss["binding_term"] in ("optimizer", "workspace")
    assert miss["memory_bytes"][miss["binding_term"]] >= 51e9
    assert miss["memory_bytes"]["total"] > miss["memory_bytes"]["capacity"]
    flags = [change["flags"] for change in miss["would_fit"]]
    assert any(flag.startswith("--mesh 1x") and flag.endswith("dgx-a100-40") for flag in flags), flags
    code, out, _ = run(*arguments)
    assert code == 1 and "No plan fits 1 device of" in out and miss["binding_term"] in out and flags[0] in out


def test_interrupted_it_says_where_the_results_are(run, tiny, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "prove", interrupt)
    code, out, err = run(*tiny)
    (made,) = (tmp_path / "jaxplan-runs").iterdir()
    assert (code, out) == (130, "") and f"What is known so far is in jaxplan-runs/{made.name}" in err
    assert err.endswith("\ninterrupted\n")
    monkeypatch.setattr(Search, "estimate", interrupt)
    assert run(*tiny)[2].endswith("\ninterrupted\n")
    assert json.loads((made / "search.json").read_text())["stopped"] == "interrupted"


def failing_from(count, monkeypatch):
    """Lets that many plan files be written, then has the disk full."""
    write, calls = folder_module.write_plan, []

    def fail(record, path):
        calls.append(path)
        if len(calls) > count:
            raise InputError(f"cannot write {path}: No space left on device")
        return write(record, path)

    monkeypatch.setattr(folder_module, "write_plan", fail)


def test_a_folder_that_cannot_be_written_is_no_folder(run, tiny, tmp_path, monkeypatch):
    failing_from(1, monkeypatch)
    code, out, err = run(*tiny)
    assert (code, out, list((tmp_path / "jaxplan-runs").iterdir())) == (2, "", [])
    assert "No space left" in err.splitlines()[-1]


def test_a_disk_that_fills_up_later_loses_no_result(run, tiny, tmp_path, monkeypatch):
    failing_from(3, monkeypatch)
    code, out, err = run(*tiny)
    assert code == 2 and "partitioned" in out and "Plan written" not in out
    assert "error: cannot write" in err.splitlines()[-1]
    (made,) = (tmp_path / "jaxplan-runs").iterdir()
    assert len(json.loads((made / "search.json").read_text())["plans"]) == 3


def test_two_searches_of_one_minute_have_a_folder_each(tmp_path):
    made = [new_folder(tmp_path, "1130-1602") for _ in range(3)]
    assert [path.name for path in made] == ["1130-1602", "1130-1602-2", "1130-1602-3"]


def test_kernels_by_what_they_take():
    def kernel(chip, model):
        machine = catalogue.machine("1x1", chip)
        return attention_kernel(machine, workload_of(machine, model, None, None, None, None, "adamw"))

    # cuDNN's attention takes heads up to 128 wide, from Hopper on up to 256; Gemma's are 256, DeepSeek's 192
    assert kernel("a100-80", "llama3-8b") == "cudnn" and kernel("a100-80", "gemma-2b") == "blockwise"
    assert kernel("h100", "gemma-2b") == kernel("h100", "deepseek-v3") == "cudnn"
    assert kernel("v5e", "gemma-2b") == "splash"


def row(remat):
    axes = mesh_axes({"data": 2, "fsdp": 4})
    work = Workload(model=catalogue.model("llama3.2-1b"), batch=32, seq=8192)
    plan = Plan(catalogue.machine("1x8", "h100"), work, axes, remat, 4, "cudnn", zero1=True)
    return SimpleNamespace(
        plan=plan,
        memory_bytes={"total": 12.3 * 2**30, "capacity": 15.75 * 2**30},
        step_time_s={"value": 9.81, "low": 9.0, "high": 11.0},
        mfu=0.54,
        bottleneck="exposed tensor all-reduce",
        proof="compiled",
        tokens_per_s_per_chip=1234.0,
    )


@pytest.mark.parametrize("width", [60, 80, 100, 180])
def test_tables_fit_the_terminal_and_tell_rows_apart(width, capsys):
    console = Console(width=width, force_terminal=True, no_color=True, file=sys.stdout)
    console.print(text.plans_grid((row("dots"), row("full")), False, console.width))
    lines = capsys.readouterr().out.splitlines()
    table = "\n".join(lines)
    assert all(len(Text.from_ansi(line)) <= width for line in lines)
    assert all(word in table for word in ("dots", "full", "9.81 s", "compiled"))
    assert ("1,234" in table) == (width == 180)


@pytest.mark.parametrize("arguments", [["catalog"], ["catalog", "--json"]])
def test_a_reader_that_leaves_is_no_failure(arguments, tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jaxplan", *arguments]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_our_own_faults_are_neither_verdicts_nor_tracebacks(run, tiny, monkeypatch):
    monkeypatch.setattr(Search, "estimate", lambda *_: 1 / 0)
    code, _, err = run(*tiny)
    assert code == 70 and err.splitlines()[-1].startswith("error: jaxplan itself failed: ZeroDivisionError")
    assert "Traceback" not in err and "Traceback" in run(*tiny, "--debug")[2]
