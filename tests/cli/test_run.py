"""`jaxplan run` as users start it: on eight virtual devices, in two processes, interrupted, with bad input."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "machine"))
import made_calibrations as made

from jaxplan.cli import run as run_module
from jaxplan.cli.main import main
from jaxplan.machine import catalogue
from jaxplan.machine.attached import written
from jaxplan.plan.files import read, write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.run.process import Ending
from jaxplan.workload.shape import ModelShape, Workload

ROOT = Path(__file__).resolve().parents[2]
SHAPE = ModelShape("tiny", layers=2, embed=32, mlp=32, heads=4, kv_heads=2, head_dim=8, vocab=64)
PLAN = Plan(
    catalogue.machine("2x4", "v5e"),
    Workload(SHAPE, 16, 32),
    mesh_axes({"data": 2, "fsdp": 2, "tensor": 2}),
    "full",
    2,
    "splash",
    zero1=True,
    compiler_flags={"xla_tpu_x": "true"},
)
# the same, quicker to compile: for what only has to run
PLAIN = replace(PLAN, axes=mesh_axes({"data": 4, "fsdp": 2}), remat="none", microbatches=1, zero1=False)


def start(folder, *arguments):
    """The command in a process of its own, as a shell without settings starts it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-m", "jaxplan", "run", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, env={**kept, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return write(PlanRecord(PLAN), tmp_path_factory.mktemp("plan") / "plan.json")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(PlanRecord(PLAIN), tmp_path_factory.mktemp("plain") / "plan.json")


@pytest.fixture(scope="module")
def ran(planned):
    """(exit code, output, errors, the run's folder)."""
    known = planned.parent / "by-hand.toml"
    known.write_text(written(made.of_cpu()))
    flags = ("--devices", 8, "--steps", 4, "--warmup", 1, "--calibration", known, "--json")
    process = start(planned.parent, planned, *flags)
    out, err = process.communicate(timeout=240)
    (folder,) = (planned.parent / "jaxplan-runs").iterdir()
    return process.returncode, out, err, folder


def test_one_document_and_a_folder_that_others_read(ran):
    code, out, err, folder = ran
    assert code == 0, err
    told = json.loads(out)
    assert told == json.loads((folder / "run.json").read_text()) and told["schema"] == "jaxplan.run/1"
    assert folder.name.endswith("-run")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    (profile,) = {name for name in files if name.endswith(".xplane.pb")}
    assert files == {"plan.json", "run.json", "timeline.json", "program.hlo.txt", profile}
    assert profile.startswith("plugins/profile/run/") and told["profiler"]["session"] == "run"
    # nothing but the machine, the kernel and the flags is another's, so that nothing counts as scaled
    assert told["ran_on"]["scaled"] is None and told["ran_on"]["devices"] == 8
    assert told["workload"] == PLAN.workload.to_json() and told["label"] == "data=2 fsdp=2 tensor=2"
    kept = read(folder / "plan.json").plan
    assert kept.sizes == PLAN.sizes and kept.attention == "blockwise" and kept.compiler_flags == {}
    assert {"Attention runs as blockwise: cpu has no splash kernel."} < set(told["notes"])
    assert "attached   8 x cpu" in err and "compile" in err


def test_what_was_measured(ran):
    told = json.loads(ran[1])
    times = told["step_time_s"]
    assert len(times["all"]) == 4 and times["p10"] <= times["median"] <= times["p90"] <= times["worst"]
    assert told["tokens_per_s"] == pytest.approx(16 * 32 / times["median"])
    assert len(told["loss"]) == len(told["gradient_norm"]) == 1 + 4 + 4 and told["finite"]
    # untrained, on random ids: nothing is known of the next of 64 tokens (cross-entropy ln 64), more or less
    assert told["loss"][0] == pytest.approx(np.log(64), rel=0.2)
    assert told["parity"]["checked"] and told["parity"]["passed"], told["parity"]
    # weights that a token meets: 2 layers of 2 x 32 x 32 + 2 x 32 x 16 + 3 x 32 x 32, and 32 x 64; 6 FLOPs each. Causal
    # attention: 6 x 32 heads' widths x 32 tokens a layer. By hand, 4 devices do 5e10 a second, and 8 half of it each.
    flops = 16 * 32 * (6 * (2 * 6144 + 2048) + 2 * 6 * 32 * 32)
    assert told["mfu"]["value"] == pytest.approx(flops / (8 * 2.5e10 * times["median"]))
    assert "measured dense peak" in told["mfu"]["convention"] and told["calibration"] == "by-hand"
    assert told["memory_bytes"]["peak_per_device"] is None and "no account" in told["memory_bytes"]["why_not"]
    assert told["profiler"]["steps"] == 4


def test_the_measured_ledger_is_of_the_profiled_steps(ran):
    told, timeline = json.loads(ran[1]), json.loads((ran[3] / "timeline.json").read_text())
    total = sum(entry["seconds"] for entry in told["ledger"])
    assert total == pytest.approx(timeline["duration_s"]) and timeline["source"] == "measured"
    names = {entry["name"] for entry in told["ledger"]}
    assert {"matmul", "exposed tensor", "exposed fsdp", "exposed data"} <= names      # as the plan's axes are called


def test_what_the_calibration_predicts_stands_beside_it(ran):
    told, kept = json.loads(ran[1]), read(ran[3] / "plan.json")
    rows = {row["name"]: row for row in told["compared"]}
    for tier in ("estimated", "compiled"):
        predicted = dict(kept.compared("step_time_s"))[tier]
        assert sum(row[f"{tier}_s"] for row in rows.values()) == pytest.approx(predicted)
    measured = sum(entry["seconds"] for entry in told["ledger"])
    assert sum(row["measured_s"] for row in rows.values()) == pytest.approx(measured)
    assert rows["matmul"]["estimated_s"] > 0 and rows["exposed data"]["compiled_s"] > 0
    assert "rates are calibrated on Made CPU, 2 cores, 2026-01-02, by-hand" in told["notes"]


def test_another_chips_calibration_is_refused(command, planned, tmp_path):
    (tmp_path / "gpu.toml").write_text(written(made.of_gpu()))
    code, out, err = command(planned, "--devices", 8, "--calibration", "gpu.toml")
    assert (code, out) == (2, "") and "NVIDIA H100" in err.splitlines()[-1]
    assert not list((tmp_path / "jaxplan-runs").iterdir())      # nothing was run: nothing is left behind


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def two(folder, *arguments):
    where = f"127.0.0.1:{free_port()}"
    several = ("--devices", 4, "--coordinator", where, "--processes", 2)
    return [start(folder, *arguments, *several, "--process", number) for number in range(2)]


def test_two_processes_are_one_run(plain, tmp_path):
    tokens = tmp_path / "tokens.npz"
    np.savez(tokens, tokens=np.random.default_rng(0).integers(0, 64, 12 * 16 * 32 + 1))
    asked = (plain, "--no-parity", "--steps", 2, "--warmup", 1, "--data", tokens)
    (code, out, err), (code_1, out_1, err_1) = (
        (process.returncode, *said)
        for process in two(tmp_path, *asked)
        for said in [process.communicate(timeout=240)]
    )
    assert (code, code_1) == (0, 0), err + err_1
    assert out_1 == "" and err_1 == "" and "8 x cpu in 2 processes" in out      # the first speaks for both
    (folder,) = (tmp_path / "jaxplan-runs").iterdir()
    told = json.loads((folder / "run.json").read_text())
    assert told["ran_on"]["processes"] == 2 and told["parity"]["checked"] is False
    assert len(list((folder / "plugins/profile/run").glob("*.xplane.pb"))) == 2     # each wrote its own
    assert {"exposed data", "exposed fsdp"} <= {entry["name"] for entry in told["ledger"]}


def seen(process, words):
    """Waits until a process has written these words to its standard error; returns what it wrote."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"it ended before {words!r}: {''.join(lines)}")


def test_a_dead_peer_ends_the_run_and_what_was_measured_is_kept(plain, tmp_path):
    first, second = two(tmp_path, plain, "--no-parity", "--steps", 100_000)
    seen(first, "time       step")
    second.kill()       # and the kernel ends its run with it
    err = first.communicate(timeout=120)[1]
    second.communicate()
    assert first.returncode == 1 and err.count("error:") == 1, err
    assert "one of 2 processes: another one may be gone" in err.splitlines()[-1]
    (folder,) = (tmp_path / "jaxplan-runs").iterdir()
    told = json.loads((folder / "run.json").read_text())
    assert len(told["step_time_s"]["all"]) >= 1 and told["profiler"]["session"] is None


def test_interrupted_it_keeps_what_was_measured(plain, tmp_path):
    process = start(tmp_path, plain, "--devices", 1, "--no-parity", "--steps", 100_000)
    seen(process, "time       step")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("interrupted\n")
    (folder,) = (tmp_path / "jaxplan-runs").iterdir()
    told = json.loads((folder / "run.json").read_text())
    assert len(told["step_time_s"]["all"]) >= 1 and "Interrupted" in told["notes"][-1]
    # eight devices' plan on one: all axes are gone, and a device has an eighth of the batch
    assert told["ran_on"]["scaled"]["axes"] == {"data": [4, 1], "fsdp": [2, 1]}
    assert told["ran_on"]["scaled"]["batch"] == [16, 2] and "All results: jaxplan-runs/" in out


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["run", *map(str, arguments)])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", 0], "--steps 0. Expected at least 1."),
        (["--warmup", -1], "--warmup -1"),
        (["--data", "none.npy"], "cannot read tokens from none.npy"),
        (["--devices", 0], "--devices 0"),
        (["--devices", 5000], "--devices 5000"),
        (["--coordinator", "here"], "--processes, --process is missing"),
        (["--coordinator", "here", "--processes", 2, "--process", 0], "HOST:PORT"),
        (["--logdir", "taken/below"], "cannot be written"),
    ],
)
def test_bad_input_is_one_message(command, planned, tmp_path, arguments, words):
    (tmp_path / "taken").write_text("a file")
    code, out, err = command(planned, *arguments)
    assert (code, out) == (2, "") and err.splitlines()[-1].startswith("error: ") and words in err
    assert not (tmp_path / "jaxplan-runs").exists()


def test_plans_that_are_none(command, tmp_path):
    (tmp_path / "half.json").write_text('{"schema": "jaxplan.plan/1",')
    for name, words in (("none.json", "cannot read none.json"), ("half.json", "not valid JSON")):
        code, _, err = command(name)
        assert code == 2 and words in err and err.count("\n") == 1


ATTACHED = {
    "event": "attached", "platform": "gpu", "device_kind": "NVIDIA H100", "devices": 8, "process": 0, "processes": 1,
}  # fmt: skip
DECIDED = {"event": "plan", "decisions": PLAN.decisions(), "scaled": None, "words": []}
FACTS = {
    "event": "facts", "needed_flops": 1e9, "compute_dtype": "bfloat16", "tokens": 512, "peak_flops_per_s": 1e12,
}  # fmt: skip
STEP = {
    "event": "step", "phase": "plain", "number": 0, "seconds": 1.0, "dispatch_s": 0.1, "loss": 4.0,
    "gradient_norm": 1.0,
}  # fmt: skip
BEGUN = [ATTACHED, DECIDED, FACTS, STEP]
DONE = {"event": "done"}


def failed(kind, message, traceback=""):
    return {"event": "failed", "kind": kind, "message": message, "traceback": traceback}


@pytest.fixture
def pretend(command, planned, monkeypatch, tmp_path):
    """The command with a run that tells these events: (exit code, output, errors, run.json)."""

    def go(events, ending=Ending(), *arguments):  # noqa: B008  a value
        class Pretended:
            def __init__(self, request, devices):
                self.ending = ending

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def give_folder(self, path):
                pass

            def events(self):
                yield from events

        monkeypatch.setattr(run_module, "RunProcess", Pretended)
        code, out, err = command(planned, *arguments)
        found = list((tmp_path / "jaxplan-runs").glob("*/run.json"))
        return code, out, err, json.loads(found[0].read_text()) if found else None

    return go


def test_a_step_that_does_not_fit_is_a_verdict(pretend):
    message = "does not fit the devices: the step failed: an allocation of 1.00 GiB failed; a device has 75.0 GiB"
    code, out, _, told = pretend([*BEGUN, failed("VerdictError", message)])
    assert code == 1 and f"AGAINST   {message}" in out and told["against"] == [message]
    assert told["step_time_s"]["all"] == [1.0] and told["mfu"]["value"] == pytest.approx(1e9 / 8e12)


def test_virtual_devices_that_nobody_asked_for_are_said(pretend):
    virtual = {**ATTACHED, "platform": "cpu", "device_kind": "cpu"}
    said = "no accelerator was found: virtual devices; --devices"
    assert said in pretend([virtual, DECIDED, FACTS, STEP, DONE])[2]
    assert said not in pretend([virtual, DECIDED, FACTS, STEP, DONE], Ending(), "--devices", 8)[2]
    assert said not in pretend([ATTACHED, DECIDED, FACTS, STEP, DONE])[2]


def test_a_loss_that_is_lost_is_a_verdict(pretend):
    code, out, err, told = pretend([*BEGUN, {**STEP, "number": 7, "loss": None}, DONE])
    assert code == 1 and "AGAINST   step 7 (plain): the loss is not finite" in out and "loss not finite" in err
    assert told["finite"] is False and told["first_bad_step"] == 7


@pytest.mark.parametrize(
    ("events", "ending", "code", "words"),
    [
        ([failed("InputError", "Bad. Expected good.")], Ending(), 2, "error: Bad. Expected good."),
        ([*BEGUN, failed("", "JaxRuntimeError: INTERNAL: x")], Ending(), 1, "error: the run failed: JaxRuntimeError"),
        ([*BEGUN, failed("", "KeyError: 'x'", "frames")], Ending(), 70, "jaxplan itself failed: RuntimeError: Key"),
        (BEGUN, Ending("the run's process was killed", "a\nlast\n"), 1, "was killed (last words: last)"),
        ([{**ATTACHED, "processes": 4}], Ending("it crashed"), 1, "It is one of 4 processes"),
    ],
)
def test_runs_that_end_early(pretend, events, ending, code, words):
    found, _, err, told = pretend(events, ending)
    assert found == code and words in err.splitlines()[-1], err
    assert (told is None) == (events[0]["event"] == "failed")
    if told is not None and len(events) > 1:
        assert told["step_time_s"]["all"] == [1.0]


def test_peers_that_never_come(pretend):
    several = ("--coordinator", "127.0.0.1:9", "--processes", 2, "--process", 1)
    said = "F1201 04:52:14.2 1 client.h:80] Terminating because another task died\n*** Check failure ***\n @ 0x7"
    code, _, err, _ = pretend([], Ending("the run's process crashed with SIGABRT (Aborted)", said), *several)
    assert code == 2 and "process 1 of 2" in err and "(last words: Terminating because another task died)" in err


def test_other_processes_are_silent(pretend, tmp_path):
    code, out, err, told = pretend([{**ATTACHED, "process": 1, "processes": 2}, *BEGUN[1:], DONE])
    assert (code, out, err, told) == (0, "", "", None) and not (tmp_path / "jaxplan-runs").exists()


def test_a_full_disk_is_said_and_the_result_still_shown(pretend, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(run_module, "write_whole", full)
    code, out, err, told = pretend([*BEGUN, DONE], Ending(), "--json")
    assert code == 2 and told is None and json.loads(out)["step_time_s"]["median"] == 1.0
    assert "run.json cannot be written: No space left on device" in err.splitlines()[-1]
    assert "--logdir FOLDER" in err.splitlines()[-1]


def test_a_profile_that_says_nothing_costs_the_profile_only(pretend, tmp_path):
    gone = {"event": "profile", "session": "run", "path": str(tmp_path / "no.xplane.pb"), "problem": ""}
    code, _, _, told = pretend([*BEGUN, gone, DONE])
    assert code == 0 and told["ledger"] == [] and any("the profile says nothing" in note for note in told["notes"])
