"""What events amount to: figures by hand, verdicts, and a document from whatever there is."""

import json

import pytest

from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.report.run_text import run_lines
from jaxplan.run.result import RunResult
from jaxplan.workload.shape import ModelShape, Workload

SHAPE = ModelShape("tiny", layers=2, embed=64, mlp=128, heads=4, kv_heads=4, head_dim=16, vocab=256)
PLAN = Plan(catalogue.machine("1x8", "h100"), Workload(SHAPE, 32, 128), mesh_axes({"fsdp": 8}), "full", 1, "cudnn")
ATTACHED = {
    "event": "attached", "platform": "gpu", "device_kind": "NVIDIA H100", "devices": 8, "process": 0, "processes": 1,
}  # fmt: skip
FACTS = {
    "event": "facts", "needed_flops": 8e12, "compute_dtype": "bfloat16", "tokens": 4096, "peak_flops_per_s": 1e12,
}  # fmt: skip
DECIDED = {"event": "plan", "decisions": PLAN.decisions(), "scaled": None, "words": []}
AGREES = {
    "event": "parity", "checked": True, "passed": True, "loss_difference": 1e-7, "gradient_norm_difference": 1e-6,
    "tolerance": {"loss": 1e-5, "gradient_norm": 1e-4}, "why_not": "", "what": "tiny", "array": "up",
}  # fmt: skip


def step(number, phase, seconds, loss=2.0, norm=1.0):
    return {
        "event": "step", "number": number, "phase": phase, "seconds": seconds, "dispatch_s": 0.001, "loss": loss,
        "gradient_norm": norm,
    }  # fmt: skip


STEPS = [step(0, "warmup", 9.0), step(1, "plain", 2.0), step(2, "plain", 4.0), step(3, "profiled", 3.3)]


def result(*events):
    found = RunResult("plan.json", PlanRecord(PLAN), 2, 1)
    for event in events:
        found.take(event)
    json.dumps(found.to_json(), allow_nan=False)
    assert run_lines(found.to_json()) is not None       # every part of a document can be shown
    return found


def test_figures_by_hand():
    found = result(ATTACHED, DECIDED, FACTS, *STEPS, AGREES)
    told = found.to_json()
    assert told["schema"] == "jaxplan.run/1" and told["step_time_s"]["median"] == 3.0
    # 4096 tokens in 3 s; 8e12 FLOPs in 3 s on 8 devices of 1e12 FLOP/s: a third; warm-up counts in neither
    assert told["tokens_per_s"] == pytest.approx(4096 / 3) and told["mfu"]["value"] == pytest.approx(1 / 3)
    assert "bfloat16" in told["mfu"]["convention"] and told["profiler"]["overhead"] == pytest.approx(0.1)
    assert told["loss"] == [2.0] * 4 and told["finite"] and told["against"] == []
    assert any("Profiled steps took 10.0% longer, which is within" in note for note in told["notes"])
    assert told["ran_on"]["devices"] == 8 and told["workload"] == PLAN.workload.to_json()


def test_a_peak_that_nobody_knows_is_no_mfu():
    found = result(ATTACHED, DECIDED, {**FACTS, "peak_flops_per_s": None}, *STEPS)
    assert found.mfu() == (None, "the peak of NVIDIA H100 in bfloat16 is not in the catalogue")
    assert "No MFU: the peak of NVIDIA H100 in bfloat16 is not in the catalogue." in found.to_json()["notes"]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (step(4, "plain", 1.0, loss=None), "step 4 (plain): the loss is not finite"),
        (step(4, "plain", 1.0, norm=None), "step 4 (plain): the gradient norm is not finite"),
        ({**AGREES, "passed": False, "loss_difference": 3e-4}, "the loss is 0.0003 off (allowed 1e-05)"),
        ({**AGREES, "passed": False, "loss_difference": None}, "the loss is infinitely off"),
        ({"event": "compiled", "seconds": 1.0, "init_s": 1.0, "wrong": [".x: got P()"]}, "not as planned: .x: got P()"),
        ({"event": "failed", "kind": "VerdictError", "message": "does not fit."}, "does not fit"),
    ],
)
def test_what_speaks_against_a_plan(event, words):
    found = result(ATTACHED, DECIDED, FACTS, *STEPS, event)
    (said,) = found.against
    assert words in said and f"AGAINST   {said}" in run_lines(found.to_json())
    assert result(ATTACHED, DECIDED, FACTS, *STEPS, {"event": "failed", "kind": "InputError"}).against == []


def test_the_first_bad_step_is_named():
    found = result(ATTACHED, DECIDED, FACTS, *STEPS, step(4, "plain", 1.0, loss=None), step(5, "plain", 1.0, loss=None))
    told = found.to_json()
    assert (told["finite"], told["first_bad_step"], told["loss"][-1]) == (False, 4, None)


def test_a_run_that_ended_early_has_what_it_has():
    for events in ([], [ATTACHED], [ATTACHED, DECIDED], [ATTACHED, DECIDED, FACTS, STEPS[0]]):
        found = result(*events)
        found.interrupted = "Interrupted."
        told = found.to_json()
        assert told["step_time_s"] is None and told["mfu"] is None and not told["parity"]["checked"]
        assert told["memory_bytes"] == {"peak_per_device": None, "why_not": "the run ended before"}
        assert "Interrupted." in told["notes"] and told["label"] == "fsdp=8"
    memory = {"event": "memory", "peak_per_device": [2**30, 2**31], "why_not": ""}
    lines = run_lines(result(ATTACHED, DECIDED, FACTS, *STEPS, memory).to_json())
    assert "Memory    2.00 GiB on the fullest device, 1.00 GiB on the emptiest" in lines
