"""One step as it passes: the tree of events adds up to the ledger, and the program opens as a profile."""

import dataclasses
import json
import math

import hlo_fixtures as fixtures
import pytest
from test_timeline import TARGET_STEPS, step_time

from jaxplan.compile.artifacts import keep_program, keep_timeline
from jaxplan.compile.buffers import read_peak
from jaxplan.compile.events import COMPUTE, JOINED, Event, Node, document, joined
from jaxplan.compile.wire import fields
from jaxplan.compile.xspace import xspace


def every(node, times=1):
    """(times, event) of a document's node and all below it."""
    for event in node["events"]:
        yield times, event
    for child in node["children"]:
        yield from every(child, times * child["repeats"])


@pytest.mark.parametrize("name", TARGET_STEPS)
def test_events_add_up_to_the_ledger(name):
    time = step_time(name)
    told = document(time.step, "compiled")
    assert told["lanes"][0] == COMPUTE and told["duration_s"] == pytest.approx(time.value_s, rel=1e-9)
    computed = sum(times * event[2] for times, event in every(told["root"]) if event[0] == 0)
    waited = sum(times * event[5] for times, event in every(told["root"]))
    ledger = {entry.name: entry.seconds for entry in time.ledger}
    exposed = sum(seconds for entry, seconds in ledger.items() if entry.startswith("exposed"))
    assert computed == pytest.approx(sum(ledger.values()) - exposed, rel=1e-9)
    # a wait begins at the earliest when its transfer begins, unless the links were busy before: then it is longer
    assert waited <= exposed * (1 + 1e-9)
    assert waited >= exposed - sum(entry.seconds for entry in time.communication)
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("name", TARGET_STEPS)
def test_every_child_lies_within_its_parent(name):
    def check(node):
        for child in node["children"]:
            assert child["start_s"] >= 0
            assert child["start_s"] + child["repeats"] * child["duration_s"] <= node["duration_s"] * (1 + 1e-9)
            check(child)

    check(document(step_time(name).step, "compiled")["root"])


def test_too_many_events_become_fewer_and_take_as_long():
    short = [Event(COMPUTE, i * 1e-6, 1e-6, f"op{i}", "memory-bound") for i in range(90)]
    long = [Event("fsdp", 0.0, 1.0, "gather", "all-gather", 0.25), Event(COMPUTE, 1.0, 2.0, "dot", "matmul")]
    found = joined([*short[:40], *long, *short[40:]], most=2)
    assert [e.name for e in found] == [JOINED, "gather", "dot", JOINED]
    assert math.fsum(e.duration_s for e in found) == pytest.approx(3.0 + 90e-6)
    assert joined(short, most=90) == short


def test_an_event_exposes_no_more_than_it_takes():
    node = Node("step", 1.0, [Event("fsdp", 0.0, 0.5, "gather", "all-gather")])
    node.expose(0, 0.7)
    assert node.events[0].exposed_s == 0.5
    node.expose(0, -1.0)
    assert node.events[0] == dataclasses.replace(node.events[0], exposed_s=0.0)


def test_a_program_is_wrapped_whole():
    from jax.profiler import ProfileData

    proto = fixtures.proto("v5e_mixed")
    raw = xspace([proto])
    assert [plane.name for plane in ProfileData.from_serialized_xspace(raw).planes] == ["/host:metadata"]
    plane = dict(fields(memoryview(raw)))[1]
    metadata = dict(fields(dict(fields(dict(fields(plane))[4]))[2]))
    assert bytes(metadata[2]).decode() == f"{fixtures.module('v5e_mixed').name}(1)"
    statistic = next(dict(fields(v)) for k, v in fields(dict(fields(dict(fields(plane))[4]))[2]) if k == 5)
    assert bytes(statistic[6]) == proto and read_peak(bytes(statistic[6])).total_bytes > 0


def test_what_cannot_be_kept_is_no_failure(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    keep_timeline(blocked / "folder", Node("step"))
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "module_0001.jit_step.after_optimizations.hlo.pb").write_bytes(b"\n\0")
    keep_program(blocked / "folder", dump)
    keep_program(tmp_path / "kept", dump)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["jaxplan.xplane.pb"]
    keep_program(tmp_path / "none", tmp_path)
    assert not (tmp_path / "none").exists() and blocked.read_text() == ""
