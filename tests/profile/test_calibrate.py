"""A quick calibration of this host, for real, on 1 and 4 virtual CPU devices, and programs priced with it."""

import json
import sys
from pathlib import Path

import pytest

from jaxplan.cli import calibrate as command
from jaxplan.cli.main import main
from jaxplan.compile.environment import environment
from jaxplan.compile.worker import Job, run
from jaxplan.machine.attached import load
from jaxplan.machine.attached_machine import attached_machine
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place
from jaxplan.profile.calibrate import session
from jaxplan.profile.calibrate.session import Session

sys.path.insert(0, str(Path(__file__).parent))
COUNTS = (1, 4)
# Timings of a busy host are wrong by a small factor, wrong units by a thousand.
LOOSE = 20


def code_of(*arguments):
    with pytest.raises(SystemExit) as done:
        main(["calibrate", *arguments])
    return done.value.code


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(the file, the calibration) of `jaxplan calibrate --devices 4 --quick`."""
    folder = tmp_path_factory.mktemp("calibrations")
    assert code_of("--name", "ci", "--devices", "4", "--quick", "--out", str(folder)) == 0
    return folder / "ci.toml", load(str(folder / "ci.toml"))


def test_what_was_measured_is_complete_and_dated(measured):
    _, found = measured
    assert found.complete and found.platform == "cpu" and found.devices == 4
    assert found.measured_devices == COUNTS and found.groups == (2, 4)
    assert {"jax", "jaxlib", "python"} <= set(found.versions)
    assert found.date.count("-") == 2 and found.cores >= 1 and found.drift >= 0
    assert {(r.of, r.devices) for r in found.residuals} == {("kernels", 1), ("kernels", 4), ("collectives", 4)}


def test_rates_are_those_of_a_processor(measured):
    _, found = measured
    for devices in COUNTS:
        assert 1e8 < found.rate("matmul peak float32", devices) < 1e13
        assert 1e8 < found.rate("memory", devices) < 1e12
        assert 1e-6 < found.rate("launch", devices) < 1


def test_more_bytes_and_more_flops_never_take_less(measured):
    _, found = measured
    links = place(attached_machine(found, 4), {"data": 4}).links("data")
    for kind in ("all-gather", "all-reduce", "all-to-all"):
        times = [float(seconds(kind, nbytes, links)) for nbytes in (1, 10**4, 10**6, 10**8)]
        assert times == sorted(times) and times[0] > 0
    assert all(price >= 0 for devices in COUNTS for price in found.prices(devices).values())


@pytest.mark.parametrize("devices", COUNTS)
def test_a_program_that_was_not_fitted_is_priced_in_the_right_units(measured, devices):
    _, found = measured
    arguments = {"calibration": found.to_json(), "devices": devices}
    outcome = run(Job("held_out_program:priced_and_timed", arguments, environment(devices), 120.0))
    assert outcome.ok, outcome.message
    predicted, taken = outcome.value["predicted_s"], outcome.value["measured_s"]
    assert taken / LOOSE < predicted < taken * LOOSE
    assert outcome.value["uncovered"] == {}


def test_the_result_is_told_as_text_and_as_json(measured, monkeypatch, tmp_path, capsys):
    _, found = measured
    monkeypatch.setattr(Session, "run", lambda self: (self.keep(found), found)[1])
    assert code_of("--name", "again", "--out", str(tmp_path), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "jaxplan.calibration/1" and len(document["figures"]) == len(found.figures)
    assert load(document["path"]) == found
    assert code_of("--name", "again", "--out", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert found.device_kind in text and "all-reduce of all, 1 MiB" in text and str(tmp_path / "again.toml") in text


def test_an_interruption_keeps_what_was_measured(measured, monkeypatch, tmp_path, capsys):
    _, found = measured

    def measure(self, count, about, place):
        if count == 4:
            raise KeyboardInterrupt
        self.figures += [figure for figure in found.figures if figure.devices == count]
        self.drifts.append(0.0)

    monkeypatch.setattr(Session, "_measure", measure)
    monkeypatch.setattr(session, "_ask", lambda *_: run(Job("held_out_program:attached")))
    assert code_of("--name", "half", "--devices", "4", "--quick", "--out", str(tmp_path)) == 130
    assert "What was measured is in" in capsys.readouterr().err
    kept = load(str(tmp_path / "half.toml"))
    assert not kept.complete and kept.measured_devices == (1,)


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Session, "run", lambda self: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    assert code_of("--out", str(tmp_path / "file" / "inside")) == 2
    assert "--out" in capsys.readouterr().err
    monkeypatch.setattr(command.tempfile, "TemporaryFile", lambda **_: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert code_of("--out", str(tmp_path)) == 2


@pytest.mark.parametrize(("flag", "value"), [("--name", "../x"), ("--devices", "0"), ("--devices", "99999")])
def test_nonsense_is_refused(flag, value, tmp_path, capsys):
    assert code_of("--out", str(tmp_path), flag, value) == 2
    assert flag in capsys.readouterr().err


def test_a_machine_without_devices_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(session, "_ask", lambda *_: run(Job("held_out_program:no_devices")))
    assert code_of("--out", str(tmp_path)) == 3
    assert "--devices N" in capsys.readouterr().err
