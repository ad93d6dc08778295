"""`goodput --degraded` as users meet it, on a small model: files, JSON, text; a compiler that answers from a script."""

import json
from concurrent.futures import Future

import pytest

from jaxplan.cli import degraded_search
from jaxplan.cli.main import main
from jaxplan.compile.evidence import Evidence, Memory, Schedule
from jaxplan.compile.tiers import Tiers
from jaxplan.machine import catalogue
from jaxplan.plan.files import read, write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord, leaf_specs
from jaxplan.search import space
from jaxplan.search.legal import RuleSet
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.table import Table

# one layer, two heads, 128 tokens: no stages, no context, and at most 2 devices of tensor
SMALL = ModelShape("small", layers=1, embed=64, mlp=128, heads=2, kv_heads=2, head_dim=32, vocab=256)
TABLES: dict[Workload, Table] = {}


def trace(_, workload):
    """In this process, each workload once."""
    from jaxplan.compile.lower import trace_job

    if workload not in TABLES:
        TABLES[workload] = Table.from_json(trace_job(workload.to_json()))
    return TABLES[workload]


def plan_file(path, mesh="4x8", chip="h100", batch=64, shape=SMALL, **sizes):
    machine = catalogue.machine(mesh, chip, None)
    workload = Workload(shape, batch=batch, seq=128)
    attention = "splash" if machine.platform == "tpu" else "cudnn"
    sizes = sizes or {"fsdp": machine.devices}
    plan = Plan(machine, workload, mesh_axes({"data": 1, "tensor": 1, **sizes}), "full", 1, attention)
    leaves = leaf_specs(trace(None, workload), plan.rules, tuple(plan.sizes))
    return write(PlanRecord(plan, *leaves), path)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tiers, "trace", trace)
    # one rematerialization policy and one set of rules: the search as it is, over fewer plans
    monkeypatch.setattr(space, "policies_of", lambda *_, **__: ["full"])
    monkeypatch.setattr(space, "rule_sets", lambda *_: (RuleSet(False, True),))

    def go(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["goodput", *map(str, arguments), "--degraded"])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return go


def test_hosts_that_are_missing(run, tmp_path):
    path = plan_file(tmp_path / "plan.json")
    code, out, _ = run(path, "--no-compile", "--json", "--spares", "0")
    found = json.loads(out)["degraded"]
    assert code == 0 and found == json.loads((tmp_path / "goodput.json").read_text())["degraded"]
    assert found["unit"] == {"word": "host", "hosts": 1, "count": 4} and found["stopped"] == ""
    one, two = found["cases"]
    # 24 devices cut a batch into 12 (with tensor 2) or 24 parts; 16 devices keep the batch of 64
    assert [(w["kind"], w["chips"], w["batch"]["rows"]) for w in one["ways"]] == [
        ("idle", 16, 64), ("padded", 24, 64), ("nearest", 24, 60), ("whole", 24, 72),
    ]
    assert [(w["kind"], w["chips"], w["batch"]["rows"]) for w in two["ways"]] == [("exact", 16, 64)]
    assert one["ways"][3]["learning_rate"] == {"ratio": 1.125, "linear": 1.125, "square_root": 1.125**0.5}
    assert one["ways"][0]["learning_rate"] is None and one["ways"][0]["readers"] == [4, 2]
    for way in (*one["ways"], *two["ways"]):
        record = read(tmp_path / way["plan"])
        assert record.plan.machine.chips == way["chips"] and record.plan.workload.batch == way["batch"]["run"]
        assert way["compile"] is None and way["fits"] and "only reshards" in way["changes"][2]
        tokens = way["batch"]["rows"] * 128 / way["step_time_s"]["value"]
        assert way["relative"]["source"] == "estimated" and way["tokens_per_s"] == pytest.approx(tokens)


def test_the_long_run_adds_up(run, tmp_path):
    path = plan_file(tmp_path / "plan.json")
    _, out, _ = run(path, "--no-compile", "--json", "--spares", "0", "--repair", "48h")
    document = json.loads(out)
    found = document["degraded"]["over_time"]
    waits, keeps, fastest = found[0], found[1], found[-1]
    assert [one["strategy"] for one in found] == ["wait", "keep the batch", "fastest way"][: len(found)]
    for one in found:
        assert sum(level["share"] for level in one["levels"]) + one["stopped"] == pytest.approx(1)
    assert waits["throughput"] == pytest.approx(document["goodput"]["value"])       # without spares the same formula
    assert fastest["throughput"] >= keeps["throughput"] > waits["throughput"]
    assert [level["lost"] for level in keeps["levels"]] == [0, 2]    # with 1 lost 16 chips work, and with 2 as well


def test_text_says_everything_once(run, tmp_path):
    path = plan_file(tmp_path / "plan-3.json")
    code, out, err = run(path, "--no-compile", "--lost", "2,1")
    assert code == 0 and "1 host fewer: h100 3x8" in err
    for words in (
        "1 host fewer: h100 3x8, 24 chips", "8 chips idle", "2 hosts fewer: h100 2x8, 16 chips",
        "learning rate times 1.125 by the linear rule, times 1.061 by the square-root rule",
        "data goes on at sample steps x 64, read by 2 hosts instead of 4", "degraded-3-1-idle.json",
    ):
        assert words in " ".join(out.split())
    assert out.count("Goyal et al. 2017") == 1 and out.count("only reshards") == 1


def test_slices(run, tmp_path):
    path = plan_file(tmp_path / "plan.json", "2x(2x4)", "v5e", data=2, fsdp=8)
    _, out, _ = run(path, "--no-compile", "--json")
    found = json.loads(out)["degraded"]
    one, two = found["cases"]
    assert one["machine"] == "v5e 2x4" and [way["kind"] for way in one["ways"]] == ["exact"]
    assert two["machine"] is None and "nothing is left" in two["why_not"]


def test_what_does_not_fit_is_said_with_what_would(run, tmp_path):
    deep = ModelShape("deep", layers=2, embed=8192, mlp=32768, heads=64, kv_heads=8, head_dim=128, vocab=8192)
    path = plan_file(tmp_path / "plan.json", "2x4", "v5e", 32, deep)
    code, out, _ = run(path, "--no-compile", "--lost", "2", "--json")
    (case,) = json.loads(out)["degraded"]["cases"]
    # 2 x 2 layers' worth of 1.1 B parameters: on 1 chip 12 bytes each are more than 15.75 GiB
    assert code == 0 and case["machine"] == "v5e 1x1" and case["why_not"] == "No way to go on fits."
    assert not case["ways"][0]["fits"] and "No plan fits 1 device" in case["ways"][0]["why_not"]
    assert case["would_fit"]


def scripted(monkeypatch, step_s, refuse=lambda plan: False):
    """A compiler that knows every plan's step time, by its chips, and refuses what it is told to."""
    asked = []

    def compile(_, plan):
        asked.append(plan)
        future: Future = Future()
        memory = Memory("cuda", 2**30, 2**30, 2**30, 2**30)
        seconds = step_s[plan.machine.chips]
        schedule = Schedule(seconds, seconds, seconds, (("matmul", seconds),))
        found = Evidence("compiled", "ok", "cuda", memory=memory, schedule=schedule, seconds=7.0)
        refused = Evidence("compiled", "does not fit", "cuda", "needs 99 GiB", needed_bytes=99 * 2**30)
        future.set_result(refused if refuse(plan) else found)
        return future

    monkeypatch.setattr(Tiers, "compile", compile)
    return asked


def test_compiled_ahead(run, tmp_path, monkeypatch):
    path = plan_file(tmp_path / "plan.json")
    asked = scripted(monkeypatch, {32: 1.0, 16: 2.5})
    _, out, _ = run(path, "--json", "--lost", "2", "--step-time", "1s")
    found = json.loads(out)["degraded"]
    assert found["swap"]["compile"] == {"status": "ok", "seconds": 7.0, "from_cache": False, "message": ""}
    ((way,),) = (case["ways"] for case in found["cases"])
    assert way["relative"] == {"value": pytest.approx(0.4), "source": "compiled"}       # 64 in 2.5 s, not in 1 s
    assert way["compile"]["status"] == "ok" and way["step_time_s"]["value"] == 2.5
    assert asked[0].machine.chips == 32 and asked[1].machine.chips == 16 and len(asked) >= 2
    assert read(tmp_path / way["plan"]).time.source == "compiled"


def test_what_the_compiler_refuses_is_replaced(run, tmp_path, monkeypatch):
    path = plan_file(tmp_path / "plan.json")
    asked = scripted(monkeypatch, {32: 1.0, 16: 2.5}, lambda plan: plan.machine.chips == 16 and plan == asked[1])
    _, out, _ = run(path, "--json", "--lost", "2")
    ((way,),) = (case["ways"] for case in json.loads(out)["degraded"]["cases"])
    assert way["compile"]["status"] == "ok" and read(tmp_path / way["plan"]).plan == asked[2]


def test_an_interrupt_keeps_what_is_known(run, tmp_path, monkeypatch):
    path = plan_file(tmp_path / "plan.json")
    real, calls = degraded_search.rank, []

    def rank(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(degraded_search, "rank", rank)
    code, out, _ = run(path, "--no-compile", "--lost", "2,3", "--json")
    found = json.loads(out)["degraded"]
    assert code == 130 and found["stopped"] == "interrupted" and [case["lost"] for case in found["cases"]] == [2]
    assert json.loads((tmp_path / "goodput.json").read_text())["degraded"] == found


@pytest.mark.parametrize(("flags", "words"), [
    (("--nodes", "8", "--step-time", "1s"), "--degraded without a plan"),
    (("--lost", "0"), "at least 1"),
    (("--lost", "one"), "--lost 1,2"),
])
def test_wrong_input(run, tmp_path, flags, words):
    path = [] if "--nodes" in flags else [plan_file(tmp_path / "plan.json")]
    code, out, err = run(*path, *flags)
    assert code == 2 and words in err and out == ""
