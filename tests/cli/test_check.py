"""`check`: whose word counts, and what it says of a plan that nobody compiled."""

import json
from dataclasses import replace

import pytest

from jaxplan.cli import check as check_module
from jaxplan.cli.main import main
from jaxplan.compile.evidence import Evidence, Memory
from jaxplan.machine import catalogue
from jaxplan.plan.files import read, write
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.plan.record import MemoryLedger, Part, PlanRecord
from jaxplan.report.check import verdict
from jaxplan.workload.shape import Workload

GIB = 2**30
AXES = tuple(MeshAxis(name, size, name) for name, size in (("data", 2), ("fsdp", 4), ("tensor", 1)))
PLAN = Plan(
    machine=catalogue.machine("1x8", "h100"),
    workload=Workload(model=catalogue.model("llama3.2-1b"), batch=32, seq=8192, optimizer="adamw"),
    axes=AXES,
    remat="full",
    microbatches=4,
    attention="cudnn",
    zero1=True,
)
PARTITIONED = Evidence("partitioned", "ok", "cpu", memory=Memory("cpu", GIB, GIB, GIB, GIB))
COMPILED = Evidence(
    "compiled", "ok", "cuda", memory=Memory("cuda", GIB, GIB, GIB, GIB), capacity_bytes=PLAN.machine.device_hbm_bytes
)
REFUSED = Evidence("compiled", "does not fit", "cuda", "needs 99 GiB of 59.3 GiB")


def record(total_bytes, **changed):
    ledger = MemoryLedger((Part("params", total_bytes, "estimated"),), PLAN.machine.device_hbm_bytes)
    made = PlanRecord(plan=PLAN, parameters=(), optimizer=(), batch=(), memory=ledger)
    return replace(made, plan=replace(PLAN, **changed), fingerprint=made.fingerprint)


@pytest.mark.parametrize(
    ("held", "found", "fits", "source"),
    [
        (record(50 * GIB), [PARTITIONED, COMPILED], True, "compiled"),
        (record(70 * GIB), [PARTITIONED, COMPILED], True, "compiled"),
        (record(50 * GIB), [PARTITIONED, REFUSED], False, "compiled"),
        (record(50 * GIB), [PARTITIONED], True, "recorded"),
        (record(70 * GIB), [PARTITIONED], False, "recorded"),
        (record(50 * GIB, remat="none"), [PARTITIONED], None, "unknown"),      # edited: the ledger is another plan's
        (record(50 * GIB), [replace(PARTITIONED, status="failed")], False, "partitioned"),
    ],
)
def test_whose_word_counts(held, found, fits, source):
    said = verdict(held, found)
    assert (said.fits, said.source) == (fits, source)


def run(monkeypatch, capsys, path, found, *flags):
    monkeypatch.setattr(check_module, "_evidence", lambda *_: found)
    with pytest.raises(SystemExit) as left:
        main(["check", str(path), "--out", str(path.parent / "runs"), *flags])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def test_the_exit_code_is_the_verdict(tmp_path, monkeypatch, capsys):
    path = write(record(50 * GIB), tmp_path / "plan.json")
    code, out, _ = run(monkeypatch, capsys, path, [PARTITIONED, COMPILED])
    assert code == 0 and "data=2 fsdp=4 zero1, full remat, 4 microbatches" in out and "fits" in out
    code, out, _ = run(monkeypatch, capsys, path, [PARTITIONED, REFUSED], "--json")
    assert code == 1 and json.loads(out)["fits"] is False
    code, out, _ = run(monkeypatch, capsys, path, [PARTITIONED])
    assert code == 0 and "not compiled here; as the plan file says, it fits: 50.0 GiB of 59.3 GiB" in out


def test_what_tensorboard_shows_is_kept(tmp_path, monkeypatch, capsys):
    path = write(record(50 * GIB), tmp_path / "plan.json")
    compile_left = tmp_path / "left"
    compile_left.mkdir()
    for name in ("timeline.json", "jaxplan.xplane.pb"):
        (compile_left / name).write_text(name)
    run(monkeypatch, capsys, path, [PARTITIONED, replace(COMPILED, folder=compile_left)], "--json")
    (folder,) = (tmp_path / "runs").iterdir()
    kept = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert json.loads(kept["check.json"])["fits"] is True
    assert json.loads(kept["explain.json"])["schema"] == "jaxplan.explain/1"
    assert read(folder / "plan.json").evidence.keys() == {"partitioned", "compiled"}
    assert kept["timeline.json"] == "timeline.json"
    assert kept["plugins/profile/compiled-plan/jaxplan.xplane.pb"] == "jaxplan.xplane.pb"


def test_a_folder_that_takes_nothing_does_not_change_the_verdict(tmp_path, monkeypatch, capsys):
    path = write(record(50 * GIB), tmp_path / "plan.json")
    (tmp_path / "runs").write_text("a file where the folder should be")
    code, out, err = run(monkeypatch, capsys, path, [PARTITIONED, COMPILED], "--json")
    assert code == 0 and json.loads(out)["fits"] is True and "cannot be written" in err


def test_an_edited_plan_is_checked_as_it_is(tmp_path, monkeypatch, capsys):
    path = write(record(50 * GIB), tmp_path / "plan.json")
    path.write_text(path.read_text().replace('"remat": "full"', '"remat": "none"', 1))
    code, out, _ = run(monkeypatch, capsys, path, [PARTITIONED])
    assert code == 0 and "the plan was changed" in out and "nobody knows whether it fits" in out
    assert "none remat" in out


def test_bad_input_that_only_a_worker_sees_is_bad_input(tmp_path, monkeypatch, capsys):
    path = write(record(50 * GIB), tmp_path / "plan.json")
    told = Evidence("partitioned", "failed", "cpu", "InputError: optimizer 'foo'. Expected one of adamw, sgd.")
    code, out, err = run(monkeypatch, capsys, path, [told])
    assert (code, out) == (2, "") and err == f"error: {path}: optimizer 'foo'. Expected one of adamw, sgd.\n"
    assert run(monkeypatch, capsys, path, [], "--jobs", "0")[0] == 2
