"""`validate` as users meet it: text, JSON, files, and one message for what is wrong. Predictions are made up here."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from jaxplan.cli import validate as validate_module
from jaxplan.cli.main import main
from jaxplan.errors import InputError
from jaxplan.validate.row import Row

ROW = Row(
    id="checked", chip="h100-sxm", framework="torchtitan (FSDP2)", group="FSDP", kind="dense", grade="A",
    source="paper", series="layouts", varies="FSDP / TP / batch", devices=8, part="check", tokens_per_step=65536.0,
    model_flops=4e14, peak_flops_per_s=1e15, published_step_time_s=1.0, predicted_step_time_s=1.1, low_s=0.9,
    high_s=1.2, ledger_s={"matmul": 1.1}, published_memory_bytes=None, memory_kind="", predicted_memory_bytes=5e10,
    capacity_bytes=8e10, fits=True, oom=False, not_predicted=None, doubt=None,
)
ROWS = {"bundled.toml": (ROW, replace(ROW, id="fitted", part="fit")), "mine.toml": (replace(ROW, id="mine"),)}


def left_out(runs, by, calibration, known):
    return tuple(
        replace(row, predicted_step_time_s=1.5, high_s=1.5, ledger_s={f"without its {by}": 1.5}) for row in runs
    )


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs the command on made-up predictions: (exit code, output, errors)."""
    made = {
        "published": {"read": lambda path: ROWS[path.name], "bundled": lambda: Path("bundled.toml")},
        "calibration": {"load": lambda: SimpleNamespace(parameters=())},
        "predict": {"predict_all": lambda runs, calibration: runs},
        "fit": {"left_out": left_out},
    }
    for name, content in made.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"jaxplan.validate.{name}", module)
    monkeypatch.setattr(validate_module, "folder", lambda kind: tmp_path)

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["validate", *map(str, arguments)])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


def ids(out):
    return [row["id"] for row in json.loads(out)["rows"]]


def test_text_and_json(run):
    code, out, err = run()
    assert code == 0 and "2 runs, 2 predicted" in out and "Requirements" in out and err == ""
    code, out, _ = run("--json")
    assert code == 0 and ids(out) == ["checked", "fitted"]


@pytest.mark.parametrize(
    ("part", "shown"), [("check", ["checked"]), ("fit", ["fitted"]), ("all", ["checked", "fitted"])]
)
def test_parts(run, part, shown):
    code, out, _ = run("--part", part, "--json")
    assert code == 0 and ids(out) == shown and json.loads(out)["part"] == part


def test_files_of_yours(run):
    code, out, _ = run("--runs", "mine.toml", "--json")
    found = json.loads(out)
    assert code == 0 and ids(out) == ["mine"] and found["runs"] == "mine.toml"
    # the fractions of the baselines come from the bundled fitting set: an MFU of 0.4, so that 1 s is predicted
    assert found["baselines"]["constant MFU per chip"][0]["mean_absolute_error"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("by", ["source", "framework"])
def test_leaving_one_out(run, by):
    code, out, _ = run(f"--leave-one-{by}-out", "--json")
    found = json.loads(out)
    assert code == 0 and f"without its {by}" in found["calibration"]
    assert {next(iter(row["ledger_s"])) for row in found["rows"]} == {f"without its {by}"}


def test_a_page_and_a_record(run, tmp_path):
    page = tmp_path / "docs" / "accuracy.md"
    code, out, err = run("--page", page)
    assert (code, out) == (0, "") and str(page) in err
    said = page.read_text()
    assert "Leaving out a run's source" in said and "Leaving out a run's framework" in said
    code, out, _ = run("--write", "--json")
    written = json.loads((tmp_path / "published_accuracy.json").read_text())
    assert code == 0 and written == json.loads(out) and written["schema"] == "jaxplan.validate/1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--part", "both"], "--part both. Expected one of check, fit, all"),
        (["--worst", "-1"], "--worst -1. Expected 0 or more"),
        (["--leave-one-source-out", "--leave-one-framework-out"], "one of them at a time"),
        (["--write", "--runs", "mine.toml"], "--write records the runs that come along"),
        (["--write", "--part", "fit"], "--write records the runs that come along"),
        (["--page", "/dev/null/page.md"], "cannot write /dev/null/page.md"),
    ],
)
def test_bad_input(run, arguments, said):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and said in err and err.count("\n") == 1


def test_a_file_that_cannot_be_read_is_one_message(run, monkeypatch):
    def read(path):
        raise InputError(f"{path} is no TOML: Invalid value (at line 3, column 5)", "[[run]] tables")

    monkeypatch.setattr(sys.modules["jaxplan.validate.published"], "read", read)
    code, out, err = run("--runs", "broken.toml")
    assert (code, out) == (2, "") and "line 3" in err and err.count("\n") == 1
