"""`explain` as users meet it: text and JSON, exit codes, files that were edited or broken, programs of their own."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxplan.cli.main import main
from jaxplan.compile.evidence import Evidence, Memory, Schedule
from jaxplan.machine import catalogue
from jaxplan.plan.files import write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import MemoryLedger, Part, PlanRecord
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.user import AS_WRITTEN, Reference

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "workload" / "user_programs"
SHAPE = ModelShape("tiny", layers=2, embed=64, mlp=128, heads=4, kv_heads=4, head_dim=16, vocab=256)
MACHINE = catalogue.machine("1x8", "h100", None)
PLAN = Plan(
    machine=MACHINE,
    workload=Workload(SHAPE, batch=32, seq=128),
    axes=mesh_axes({"data": 2, "fsdp": 2, "tensor": 2}),
    remat="full",
    microbatches=2,
    attention="cudnn",
)
COMPILED = Evidence(
    "compiled", "ok", "cuda",
    capacity_bytes=MACHINE.device_hbm_bytes,
    memory=Memory("cuda", 1000, 900, 900, 2000),
    schedule=Schedule(0.5, 0.4, 0.8, (("matmul", 0.3), ("exposed fsdp", 0.2)), ()),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for all: the first explanation fills it with the trace."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, tmp_path, monkeypatch, capsys):
    """Runs the command in this process: (exit code, output, errors)."""
    monkeypatch.setenv("JAXPLAN_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["explain", *map(str, arguments)])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


def written(folder, plan=PLAN, **known):
    return write(PlanRecord(plan, **known), folder / "plan.json")


def compiled(evidence=COMPILED):
    """What a search knows of a plan that it compiled."""
    memory = MemoryLedger((Part("params", 1000, "compiled"), Part("workspace", 2000, "compiled")), 10**9)
    return {"evidence": {"compiled": evidence.to_json()}, "memory": memory}


def test_text_says_what_and_why(run, tmp_path):
    code, out, err = run(written(tmp_path), "--why-not", "data=8")
    assert (code, err) == (0, "")
    for words in (
        *("data=2 fsdp=2 tensor=2, full remat, 2 microbatches", "fits (estimated)", "Axis tensor: 2 devices"),
        *("on NVLink: 2 chips", "What limits it", "What each decision is worth", "Why not data=8?", "faster by"),
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 140


def test_json_is_one_document(run, tmp_path):
    code, out, _ = run(written(tmp_path), "--json", "--why-not", "remat=dots")
    found = json.loads(out)
    assert code == 0 and found["schema"] == "jaxplan.explain/1" and found["fits"] is True and found["illegal"] is None
    assert found["plan"]["mesh"] == PLAN.sizes and found["plan"]["fingerprint"] == PLAN.fingerprint
    assert [axis["axis"] for axis in found["axes"]] == ["data", "fsdp", "tensor"]
    assert found["why_not"]["plan"]["remat"] == "dots" and found["why_not"]["plan"]["microbatches"] == 2


def test_evidence_is_used_until_the_plan_is_edited(run, tmp_path):
    path = written(tmp_path, **compiled())
    code, out, _ = run(path)
    assert code == 0 and "fits (compiled): 2.93 KiB of" in out and "500 ms (400 to 800), compiled" in out
    path.write_text(path.read_text().replace('"remat": "full"', '"remat": "dots"', 1))
    code, out, _ = run(path)
    assert code == 0 and "changed after its evidence was gathered" in out and "compiled" not in out
    assert "dots remat" in out and json.loads(run(path, "--json")[1])["plan"]["stale"] is True


def test_a_refused_plan_is_a_verdict_against_it(run, tmp_path):
    refused = replace(COMPILED, status="does not fit", message="needs 99 GiB", memory=None, needed_bytes=99 * 2**30)
    code, out, _ = run(written(tmp_path, **compiled(refused)))
    assert code == 1 and "does not fit (compiled): 99.0 GiB of" in out
    # 2 x 3 x 16384 x 65536 weights of 12 bytes each with AdamW: 77 GB on one chip of 80 GB
    wide = replace(SHAPE, name="wide", embed=16384, mlp=65536, heads=128, kv_heads=128, head_dim=128)
    big = replace(PLAN, workload=Workload(wide, 32, 128), axes=mesh_axes({"data": 8}))
    code, out, _ = run(written(tmp_path, big), "--why-not", "fsdp=8")
    assert code == 1 and "does not fit (estimated)" in out and "too much" in out


def test_a_plan_that_no_search_makes_is_said_to_be_illegal(run, tmp_path):
    odd = replace(PLAN, axes=mesh_axes({"tensor": 8}))      # of 4 key-value heads
    code, out, _ = run(written(tmp_path, odd))
    assert code == 1 and "Illegal heads is not divisible by tensor" in out
    assert json.loads(run(written(tmp_path, odd), "--json")[1])["illegal"] == "heads is not divisible by tensor"


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["evidence"].update(compiled={}), "evidence: key tier"),
        (lambda d: d["evidence"]["compiled"].update(schedule=5), "evidence: key schedule"),
        (lambda d: d["evidence"]["compiled"]["memory"].update(argument_bytes="many"), "key memory.argument_bytes"),
        (lambda d: d["evidence"].update(estimated={"total_bytes": "many"}), "holds no figures"),
        (lambda d: d.update(schedule="fastest"), ""),
        (lambda d: d.update(remat="most"), "remat must be one of"),
        (lambda d: d.update(microbatches=7), "not divisible"),
        (lambda d: d["mesh"][0].update(axis="rows"), "rows"),
        (lambda d: d.pop("workload"), "key workload is missing"),
    ],
)
def test_a_broken_file_is_one_message(run, tmp_path, change, words):
    path = written(tmp_path, **compiled())
    edit(path, change)
    code, out, err = run(path)
    if not words:       # one stage has no schedule to wait for
        assert code == 0
        return
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1 and words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--why-not", "data=8,tensor=16"], "makes 128 devices"),
        (["--why-not", "tensor=four"], "'tensor=four'"),
        (["--why-not", ""], "got nothing"),
        (["--why-not"], "--why-not"),
    ],
)
def test_bad_questions_are_one_message(run, tmp_path, arguments, words):
    code, out, err = run(written(tmp_path), *arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1 and words in err


def test_files_that_are_not_there(run, tmp_path):
    assert run("none.json")[0] == 2
    (tmp_path / "half.json").write_text('{"schema": "jaxplan.plan/1",')
    code, _, err = run("half.json")
    assert code == 2 and "not valid JSON" in err


def test_a_warm_explanation_needs_no_jax(run, tmp_path, cache):
    path = written(tmp_path)
    assert run(path)[0] == 0        # the trace is in the cache now
    code = f"""
import sys
from jaxplan.cli.main import main
try:
    main(["explain", {str(path)!r}, "--why-not", "fsdp=8"])
except SystemExit as left:
    print([left.code, *(name for name in ("jax", "jaxlib", "flax") if name in sys.modules)])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAXPLAN_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[0]", done.stderr


def test_a_program_of_their_own(run, tmp_path):
    source = tmp_path / "mine.py"
    source.write_text((PROGRAMS / "linen_lm.py").read_text())
    (tmp_path / "sizes.py").write_text((PROGRAMS / "sizes.py").read_text())
    reference = Reference.parse(f"{source}:program")
    work = Workload(
        None, 32, 32, parameter_dtype=AS_WRITTEN, compute_dtype=AS_WRITTEN,
        reference=str(reference), program_hash=reference.digest(),
    )
    made = replace(PLAN, workload=work, axes=mesh_axes({"fsdp": 4, "tensor": 2}), remat=AS_WRITTEN,
                   attention=AS_WRITTEN, microbatches=1)
    path = written(tmp_path, made)
    code, out, _ = run(path, "--why-not", "context=2,fsdp=4")
    assert code == 0 and "mine.py:program" in out and "as-written remat" in out
    assert "illegal: the axis context means nothing to mine.py:program" in out
    assert "illegal: mine.py:program checkpoints as it is written" in run(path, "--why-not", "remat=full")[1]
    source.unlink()
    code, out, err = run(path)
    assert (code, out) == (2, "") and "mine.py" in err and err.count("\n") == 1
