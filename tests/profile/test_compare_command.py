"""`compare` as users meet it: a folder, a plan beside it, flags, exit codes, text and JSON."""

import json

import pytest
from made_spaces import AXES, HLO, LEDGER_US, PERIOD, gpu
from recorded_program import AXES as RECORDED_AXES
from test_compare import COMPILED, PLAN, record

from jaxplan.cli.main import main
from jaxplan.plan.files import write

US = 1e-6
MESH = ",".join(f"{name}={size}" for name, size in AXES.items())


@pytest.fixture
def run(capsys):
    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["compare", *map(str, arguments)])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "plugins" / "profile" / "one" / "worker-0.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(gpu())
    (tmp_path / "step.hlo.txt").write_text(HLO)
    return tmp_path


def test_a_profile_alone_with_the_text_beside_it(run, folder) -> None:
    code, out, err = run(folder, "--mesh", MESH, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["predicted_by"] is None
    ledger = {row["name"]: row["measured_s"] / US for row in document["ledger"]}
    assert ledger == pytest.approx(LEDGER_US)
    assert not (folder / "compare.json").exists()      # a folder of the user's stays as it is


def test_the_plan_that_lies_in_the_folder(run, folder) -> None:
    write(record(compiled=COMPILED.to_json()), folder / "plan.json")
    code, out, err = run(folder)
    assert code == 0
    assert "plan.json" in err
    assert "400 µs measured (median); 280 µs compiled, the measured step is 42.9% longer" in out
    lines = {line.split("  ")[1].strip(): line for line in out.splitlines() if line.startswith("  ")}
    assert lines["together"].split()[1:] == ["280", "µs", "400", "µs", "100%", "+120", "µs"]
    assert lines["exposed tensor"].split()[2:] == ["40.0", "µs", "50.0", "µs", "12.5%", "+10.0", "µs"]
    assert "What explains it:" in out
    assert all(len(line) <= 140 for line in out.splitlines())
    kept = json.loads((folder / "compare.json").read_text())
    assert kept["plan"] == PLAN.label
    assert kept["mesh"] == {**dict.fromkeys(PLAN.sizes, 1), **AXES}


def test_a_run_that_was_scaled_down_is_compared_with_its_own_prediction(run, folder) -> None:
    write(record(compiled=COMPILED.to_json()), folder / "plan.json")
    told = {
        "plan": str(folder / "plan.json"),
        "ran_on": {"scaled": {"axes": {"data": [2, 2]}, "why": "fewer devices"}},
        "compared": [{"name": "matmul", "estimated_s": 300 * US, "compiled_s": None, "measured_s": 190 * US}],
    }
    (folder / "run.json").write_text(json.dumps(told))
    code, out, _ = run(folder, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["step_time_s"]["gap"] == pytest.approx((PERIOD - 300) * US)
    assert any("smaller than the plan (fewer devices)" in note for note in document["notes"])


def test_a_real_profile_of_this_machine(run, recorded) -> None:
    mesh = ",".join(f"{name}={size}" for name, size in RECORDED_AXES.items())
    code, out, _ = run(recorded.file, "--mesh", mesh, "--step-time", "0.001")
    assert code == 0
    assert "cpu, 8 devices of 1 host, jit_step, 4 steps told apart by step annotations" in out
    assert "1.00 ms expected" in out
    assert "exposed data" in out
    assert "recorded_program.py:" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mesh", "data"], "--mesh data"),
        (["--mesh", "data=0"], "--mesh data=0"),
        (["--mesh", "data=2,data=2"], "each once"),
        (["--mesh", ""], "--mesh"),
        (["--step-time", "-1"], "--step-time -1"),
        (["--hlo", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--plan", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_message(run, folder, arguments, said) -> None:
    code, out, err = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_what_is_no_hlo_is_said(run, folder) -> None:
    (folder / "other.txt").write_text("module @jit_step {}")
    code, _, err = run(folder, "--hlo", folder / "other.txt")
    assert code == 2
    assert "not the text of an HLO module" in err
    assert "as_text()" in err


def test_a_run_file_that_is_broken(run, folder) -> None:
    (folder / "run.json").write_text("{")
    code, _, err = run(folder)
    assert code == 2
    assert "run.json cannot be read" in err
