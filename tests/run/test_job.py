"""Runs of small steps on eight virtual CPU devices, in this process: what is told, and what is found out."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxplan.errors import InputError, VerdictError
from jaxplan.machine import catalogue
from jaxplan.plan.files import read, write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.run import parity as parity_module
from jaxplan.run import profiler
from jaxplan.run.job import Request, execute
from jaxplan.run.parity import parity
from jaxplan.run.scale import scaled
from jaxplan.run.train import attached, fitting, mesh_of
from jaxplan.workload import step as step_module
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.user import AS_WRITTEN, Reference

SHAPE = ModelShape("tiny", layers=2, embed=32, mlp=32, heads=4, kv_heads=2, head_dim=8, vocab=64)
WORK = Workload(SHAPE, 8, 16, compute_dtype="float32")
PLAN = Plan(
    catalogue.machine("2x4", "v5e"), WORK, mesh_axes({"data": 2, "fsdp": 2, "tensor": 2}), "full", 1, "blockwise"
)
# e^(30 p) of small parameters at the rate of 3e-4: a step adds 0.3 e^(30 p) to 30 p, which overflows after a few
DIVERGES = """
import jax, jax.numpy as jnp, jaxplan

def program(batch, seq):
    params = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    rows = {"x": jax.ShapeDtypeStruct((batch, 8), jnp.float32), "y": jax.ShapeDtypeStruct((batch,), jnp.int32)}
    return jaxplan.Program(lambda p, b: -jnp.exp(30 * p["w"]).sum() + 0 * (b["x"] @ p["w"]).mean(), params, rows)
"""


def ran(tmp_path, plan, steps=2, warmup=1, check=False, data=""):
    """The events of a run, by kind, and the folder that it wrote."""
    path, folder = write(PlanRecord(plan), tmp_path / "plan.json"), tmp_path / "run"
    folder.mkdir()
    events = []
    request = Request(str(path), plan.decisions(), steps, warmup, data, check)
    execute(request, lambda event: events.append(json.loads(json.dumps(event))), lambda: str(folder))
    return events, folder


def of(events, kind):
    return [event for event in events if event["event"] == kind]


def test_a_program_of_theirs_whose_loss_is_lost(tmp_path):
    source = tmp_path / "diverges.py"
    source.write_text(DIVERGES)
    reference = Reference.parse(f"{source}:program")
    work = Workload(
        None, 16, 1, "sgd", AS_WRITTEN, AS_WRITTEN, reference=str(reference), program_hash=reference.digest()
    )
    plan = dataclasses.replace(PLAN, workload=work, axes=mesh_axes({"data": 8}), remat=AS_WRITTEN, attention=AS_WRITTEN)
    events, folder = ran(tmp_path, plan, steps=20)
    assert not of(events, "failed"), of(events, "failed")
    steps = of(events, "step")
    bad = [not np.isfinite([step["loss"], step["gradient_norm"]]).all() for step in steps]
    assert bad == [False] * (len(bad) - 1) + [True] and 2 < len(bad) < 8    # no step after the first bad one
    assert not of(events, "profile") and of(events, "done")
    assert any("made up" in event["text"] for event in of(events, "note"))
    assert read(folder / "plan.json").plan.workload == work and (folder / "program.hlo.txt").stat().st_size


def test_given_tokens_are_trained_on(tmp_path):
    tokens = tmp_path / "tokens.npy"
    np.save(tokens, (np.arange(4 * 8 * 16 + 1) % 64).astype(np.uint8))     # a sequence that counts: it can be learnt
    events, folder = ran(tmp_path, PLAN, data=str(tokens))
    assert [event["event"] for event in events][-1] == "done" and not of(events, "failed")
    phases = [step["phase"] for step in of(events, "step")]
    assert phases == ["warmup", "plain", "profiled", "profiled", "plain"]
    assert [step["number"] for step in of(events, "step")] == [0, 1, 2, 3, 4]
    assert any("it is read again" in event["text"] for event in of(events, "note"))     # 5 batches, 4 in the file
    (profile,) = of(events, "profile")
    assert profile["path"].startswith(str(folder / "plugins/profile/run/")) and not profile["problem"]
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "plugins", "program.hlo.txt"]
    kept = read(folder / "plan.json")
    assert {leaf.path for leaf in kept.parameters} >= {"embedding", "layers.up"} and "cpu" in kept.plan.machine.name
    np.save(tokens, np.full(4 * 8 * 16 + 1, 64, np.uint8))
    wrong = tmp_path / "again"
    wrong.mkdir()
    (failed,) = of(ran(wrong, PLAN, data=str(tokens))[0], "failed")
    assert failed["kind"] == "InputError" and "token 64 at position 0" in failed["message"]


@pytest.fixture(scope="module")
def compared():
    """The plan's small step and its mesh; what is compared is small already."""
    here = attached()
    plan = scaled(PLAN, here).plan
    return plan, mesh_of(plan, here, PLAN)


def test_a_fault_in_one_gradient_is_seen(compared, monkeypatch):
    build = step_module.build

    def faulty(plan, mesh):
        made = build(plan, mesh)

        def gradients(params, batch):
            loss, found = made.gradients(params, batch)
            return loss, {**found, "unembed": found["unembed"] * 1.001}

        return dataclasses.replace(made, gradients=gradients)

    monkeypatch.setattr(step_module, "build", faulty)
    found = parity(*compared, "float32")
    assert found.checked and not found.passed and found.loss <= 1e-6
    assert found.array == "['unembed']" and found.gradient_norm == pytest.approx(1e-3, rel=1e-2)


def test_differences_by_hand():
    allowed = parity_module.TOLERANCES["float32"]

    def found(got, wanted):
        return parity_module._differences(got, wanted, ["a", "b"], allowed, "")

    same = found((2.0, [3.0, 4.0]), (2.0, [3.0, 4.0]))
    assert same.passed and same.loss == same.gradient_norm == 0
    off = found((2.002, [3.0, 4.2]), (2.0, [3.0, 4.0]))
    assert (off.loss, off.gradient_norm, off.array) == (pytest.approx(1e-3), pytest.approx(0.05), "b")
    # all gradients have the norm 5: one of 1e-9 is compared with a thousandth of it
    assert found((2.0, [5.0, 2e-9]), (2.0, [5.0, 1e-9])).gradient_norm == pytest.approx(1e-9 / 5e-3)
    for lost in ((math.nan, [3.0, 4.0]), (2.0, [3.0, math.nan])):
        assert not found(lost, (2.0, [3.0, 4.0])).passed
        assert json.dumps(found(lost, (2.0, [3.0, 4.0])).to_json(), allow_nan=False)


def test_a_large_program_is_not_put_on_one_device(compared, monkeypatch):
    monkeypatch.setattr(parity_module, "MOST_BYTES", 1000)
    found = parity(*compared, "float32")
    assert not found.checked and not found.passed and "one device would hold" in found.why_not


class JaxRuntimeError(RuntimeError):
    """As JAX's is called."""


def test_what_allocators_refuse_is_a_verdict():
    with pytest.raises(VerdictError, match=r"the step failed: an allocation of 1.00 GiB failed"), fitting("the step"):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.")
    with pytest.raises(JaxRuntimeError), fitting("the step"):
        raise JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(InputError), fitting("the step"):
        raise InputError("something else")


def test_a_profile_that_cannot_be_written_costs_the_profile_only(tmp_path, monkeypatch):
    import jax

    def full(*_):
        raise jax.errors.JaxRuntimeError("OUT_OF_RANGE: x.xplane.pb; No space left on device\nmore")

    stop = jax.profiler.stop_trace
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: (stop(), full()))
    with profiler.profiled(tmp_path, 0) as profile:
        pass
    assert profile.path is None and profile.problem.endswith("OUT_OF_RANGE: x.xplane.pb; No space left on device")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(jax.profiler, "start_trace", full)
    with profiler.profiled(tmp_path, 0) as profile:
        pass
    assert "does not start" in profile.problem
