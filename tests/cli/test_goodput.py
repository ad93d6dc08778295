"""`goodput` as users meet it: text and JSON, files, exit codes, one message for each wrong input."""

import json
import re
from pathlib import Path

import pytest

from jaxplan.cli.main import main
from jaxplan.machine import catalogue
from jaxplan.plan.files import write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import LeafSpec, Part, PlanRecord, TimeLedger
from jaxplan.workload.shape import ModelShape, Workload

SHAPE = ModelShape("tiny", layers=2, embed=64, mlp=128, heads=4, kv_heads=4, head_dim=16, vocab=256)
MACHINE = catalogue.machine("4x8", "h100", None)
BY_HAND = ("--nodes", "2048", "--failures", "llama3-405b", "--step-time", "5s", "--tokens-per-step", "16e6")
LEAVES = (("weight", ((), ("fsdp",))), ("bias", ((), ())))


def record() -> PlanRecord:
    """4 hosts of 8: data 4, fsdp 8. Two arrays of 64 MiB for parameters, twice for the optimizer."""
    plan = Plan(
        machine=MACHINE,
        workload=Workload(SHAPE, batch=256, seq=128),
        axes=mesh_axes({"data": 4, "fsdp": 8, "tensor": 1}),
        remat="full",
        microbatches=1,
        attention="cudnn",
    )
    leaves = tuple(LeafSpec(name, (4096, 4096), "float32", 4, ((), ()), spec) for name, spec in LEAVES)
    time = TimeLedger((Part("matmul", 2.0, "estimated"),), 2.0, 2.0)
    return PlanRecord(plan=plan, parameters=leaves, optimizer=(*leaves, *leaves), time=time)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory) -> Path:
    return write(record(), tmp_path_factory.mktemp("run") / "plan-2.json")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["goodput", *map(str, arguments)])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


def test_by_hand(run, tmp_path) -> None:
    code, out, err = run(*BY_HAND, "--tokens", "15.6T", "--price-per-chip-hour", "2.5")
    assert code == 0
    assert "one every 3.09 h, 7.76 a day" in out
    assert re.search(r"Save every 115 s \(23 steps\): 9\d\.\d% of the time is useful work", out)
    assert "15 nodes: enough 99.4% of the time" in out
    assert re.search(r"Length +(59|60)\.\d d for 15.6 T tokens: 975,000 steps", out)
    for words in ("checkpoint save", "wasted progress", "initialization", "What to improve first", "second-hand"):
        assert words in out
    written = next(tmp_path.glob("jaxplan-runs/*-goodput/goodput.json"))
    assert str(written.relative_to(tmp_path)) in err


def test_the_document_holds_its_keys_and_adds_up(run, tmp_path) -> None:
    code, out, _ = run(*BY_HAND, "--tokens", "15.6T", "--json", "--out", "mine")
    found = json.loads(out)
    assert code == 0
    assert found == json.loads(next(tmp_path.glob("mine/*/goodput.json")).read_text())
    assert set(found) == {
        "schema", "plan", "label", "inputs", "nodes", "chips", "mtbf_s", "failures_per_day", "checkpoint", "restart",
        "intervals", "interval", "goodput", "simulated", "curve", "ledger", "total_s", "spares", "budget",
        "sensitivity", "assumptions",
    }
    assert found["schema"] == "jaxplan.goodput/1"
    assert sum(entry["share"] for entry in found["ledger"]) == pytest.approx(1)
    assert sum(entry["seconds"] for entry in found["ledger"]) == pytest.approx(found["total_s"])
    assert found["ledger"][0] == {
        "name": "useful work", "seconds": pytest.approx(found["budget"]["useful_s"], rel=1e-3),
        "share": pytest.approx(found["goodput"]["value"]),
    }
    assert found["simulated"][0]["agrees"] is True
    assert [answer["name"] for answer in found["intervals"]] == ["Young", "Daly", "exact"]
    assert len(found["curve"]["interval_s"]) == len(found["curve"]["goodput"]) > 50
    assert all(given["source"] for given in found["inputs"])
    assert found["budget"]["money"] is None


def test_a_plan_says_its_state_its_hosts_and_its_step(run, plan_file) -> None:
    """State: six arrays of 64 MiB. The bias lies on all 32 devices, the weight once in each of 4 replicas of `data`."""
    code, out, _ = run(plan_file, "--storage-bytes-per-s", "host=64MiB/s", "--json")
    found = json.loads(out)
    inputs = {given["name"]: given for given in found["inputs"]}
    whole = 6 * 2**26
    assert code == 0
    assert found["nodes"] == 4 and found["chips"] == 32
    assert found["checkpoint"]["state_bytes"] == whole
    assert found["checkpoint"]["write_s"] == pytest.approx(6 / 4)
    # read by all hosts: 3 x 64 MiB x (4 replicas of the weight + 32 of the bias), over 4 hosts
    assert found["checkpoint"]["restore_s"] == pytest.approx(3 * 36 / 4)
    link = MACHINE.device_host_bytes_per_s * 8
    assert found["checkpoint"]["block_s"] == pytest.approx(whole / 4 / link)
    assert inputs["step time"]["value"] == 2.0
    assert inputs["step time"]["source"] == "the plan, estimated"
    assert "H100" in inputs["failures per 1,000 node-days"]["source"]
    beside = plan_file.with_name("goodput-2.json")
    assert json.loads(beside.read_text()) == found


def test_a_plan_of_tpus_says_whose_failure_rate_it_borrows(run, tmp_path) -> None:
    tpu = catalogue.machine("4x4", "v5e", None)
    plan = Plan(tpu, Workload(SHAPE, 64, 128), mesh_axes({"data": 1, "fsdp": 16, "tensor": 1}), "full", 1, "splash")
    path = write(PlanRecord(plan=plan), tmp_path / "plan.json")
    code, out, _ = run(path)
    assert code == 0
    assert "Nobody published a failure rate of v5e nodes" in out
    assert (tmp_path / "goodput.json").exists()


def test_two_levels(run) -> None:
    local = "block=2s,restore=10s,share=0.8"
    code, out, _ = run(*BY_HAND, "--checkpoint", "blocking", "--write", "60s", "--local", local)
    assert code == 0
    assert "remotely" in out and "serves 80% of the failures" in out and "Benoit et al. 2017" in out


def test_restart_phases_by_name(run) -> None:
    phases = "detection=60s,initialization=2min,training-preparation=30s,program-startup=90s,data-loading=10s"
    _, out, _ = run(*BY_HAND, "--restart", phases, "--restore", "100s", "--json")
    restart = json.loads(out)["restart"]
    assert restart["total_s"] == 410
    assert [phase["name"] for phase in restart["phases"]] == [
        "other", "initialization", "training preparation", "program startup", "data loading", "checkpoint restore",
    ]


def test_one_seed_gives_the_same(run) -> None:
    first, second, other = (json.loads(run(*BY_HAND, "--seed", seed, "--json")[1]) for seed in (1, 1, 2))
    assert first == second
    assert first["simulated"] != other["simulated"]
    assert first["goodput"] == other["goodput"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "neither a plan nor --nodes"),
        (("--nodes", 0), "--nodes 0"),
        ((*BY_HAND, "--failures-per-1000-node-days", 3), "one of them"),
        (("--nodes", 8, "--failures-per-1000-node-days", -1), "--failures-per-1000-node-days -1"),
        (("--nodes", 8, "--failures-per-1000-node-days", "nan"), "--failures-per-1000-node-days nan"),
        (("--nodes", 8, "--failures-per-1000-node-days", 0), "a number above 0"),
        (("--nodes", 8, "--failures", "nobody"), "unknown failure rate 'nobody'"),
        ((*BY_HAND, "--tokens", "many"), "--tokens 'many'. Expected a number such as 15e12"),
        (("--nodes", 8, "--tokens", "1T"), "--tokens without --step-time"),
        (("--nodes", 8, "--step-time", "1s", "--tokens", "1T"), "--tokens without --tokens-per-step"),
        ((*BY_HAND, "--tokens", "16e6", "--interval", "1h"), "--interval must be at most the run's 5 s"),
        ((*BY_HAND, "--interval", "10s"), "--interval must be at least 55"),
        ((*BY_HAND, "--interval", "soon"), "a duration such as 90s, 15min, 24h or 30d"),
        ((*BY_HAND, "--storage-bytes-per-s", "host=1GB/s"), "without a state"),
        ((*BY_HAND, "--state-bytes", "5TB", "--storage-bytes-per-s", "host=0"), "more than 0 bytes per second"),
        ((*BY_HAND, "--state-bytes", "5TB", "--storage-bytes-per-s", "5GB"), "such as host=1GB/s,total=2TB/s"),
        ((*BY_HAND, "--state-bytes", "0"), "--state-bytes 0. Expected more than 0 bytes"),
        ((*BY_HAND, "--restart", "lunch=1h"), "detection, initialization"),
        ((*BY_HAND, "--restart", "detection=1h,detection=2h"), "names detection twice"),
        ((*BY_HAND, "--restart", "-5min"), "--restart '-5min'"),
        ((*BY_HAND, "--local", "block=2s"), "restore, share as well"),
        ((*BY_HAND, "--local", "block=2s,restore=1s,share=2"), "between 0 and 1"),
        ((*BY_HAND, "--checkpoint", "never"), "one of async, blocking"),
        ((*BY_HAND, "--spares", -1), "--spares -1"),
        ((*BY_HAND, "--spares-probability", 1), "a probability between 0 and 1"),
        ((*BY_HAND, "--repair", "0s"), "--repair must be a positive number"),
        ((*BY_HAND, "--price-per-chip-hour", "nan"), "--price-per-chip-hour nan"),
        ((*BY_HAND, "--weibull", 0), "--weibull 0"),
        ((*BY_HAND, "--seed", -1), "--seed -1"),
        ((*BY_HAND, "--restart", "30d"), "next to nothing is done"),
        ((*BY_HAND, "--restart", "9000d", "--local", "block=2s,restore=1s,share=0.5"), "next to nothing is done"),
        (("missing.json",), "missing.json"),
    ],
)
def test_each_wrong_input_gets_one_message(run, tmp_path, flags, said: str) -> None:
    code, out, err = run(*flags)
    assert code == 2
    assert said in err
    assert err.count("error:") == 1 and err.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())
