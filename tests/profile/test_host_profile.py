"""A real profile of the host platform: everything is attributed, and agrees with JAX's own reader and closed forms."""

import math
from collections import Counter, defaultdict

import pytest
from recorded_program import AXES, BATCH, EMBED, HIDDEN, LAYERS, STEPS

from jaxplan.compile.hlo import parse
from jaxplan.profile.compare import compare
from jaxplan.profile.measured import measure
from jaxplan.profile.measured_timeline import timeline
from jaxplan.profile.readers.form import ANNOTATIONS
from jaxplan.profile.trace import read

DEVICES = math.prod(AXES.values())


@pytest.fixture(scope="module")
def measured(recorded):
    return measure(read(recorded.folder), axes=AXES)


@pytest.fixture(scope="module")
def told(recorded):
    """Operations as JAX's own reader tells them: (thread, name, device, begin, end) in ns."""
    from jax.profiler import ProfileData

    found = []
    for plane in ProfileData.from_file(str(recorded.file)).planes:
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    place = (plane.name, thread)
                    found.append((place, stats["hlo_op"], stats["device_ordinal"], event.start_ns, event.end_ns))
    return found


def test_all_of_the_devices_time_is_attributed(measured, told) -> None:
    by_thread = defaultdict(list)
    for thread, _, _, begin, end in told:
        by_thread[thread].append((begin, end))
    busy = 0.0
    for spans in by_thread.values():
        reached = 0.0
        for begin, end in sorted(spans):
            busy += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
    assert busy > 0
    assert measured.attributed_s == pytest.approx(busy * 1e-9, rel=0.01)
    assert measured.total_s == pytest.approx(measured.attributed_s, rel=1e-9)
    assert measured.unknown == 0


def test_operations_are_those_of_the_trace(measured, told) -> None:
    counts = Counter(name for _, name, _, _, _ in told)
    assert {one.name: round(one.executions * DEVICES * STEPS) for one in measured.operations} == counts


def test_a_step_is_what_its_annotation_says(measured, recorded) -> None:
    from jax.profiler import ProfileData

    planes = ProfileData.from_file(str(recorded.file)).planes
    annotated = [e.duration_ns for plane in planes for line in plane.lines for e in line.events if e.name == "train"]
    assert len(measured.steps) == len(annotated) == STEPS
    # the program waits for each step inside its annotation: what is between two is short
    assert sum(measured.steps) == pytest.approx(sum(annotated) * 1e-9, rel=0.1)
    assert sum(entry.seconds for entry in measured.ledger) == pytest.approx(measured.step_s)
    assert sorted(measured.steps)[(STEPS - 1) // 2] == measured.step_s


def test_steps_of_one_device_are_told_by_their_order(tmp_path) -> None:
    import jax
    import jax.numpy as jnp

    square = jax.jit(lambda x: jnp.tanh(x @ x))
    x = square(jnp.ones((64, 64))).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    for number in (7, 8, 9):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            square(x).block_until_ready()
    jax.profiler.stop_trace()
    trace = read(tmp_path)
    assert trace.steps == (7, 8, 9) and trace.steps_from == ANNOTATIONS
    assert not any("annotation" in note for note in trace.notes)
    assert measure(trace).unknown == 0


def test_work_and_traffic_are_the_closed_forms(measured) -> None:
    flops = sum(one.flops * one.executions for one in measured.operations)
    matmuls = 2 + 4     # of a layer: two forward, for each of them two backward
    assert flops == matmuls * 2 * BATCH * EMBED * HIDDEN * LAYERS / DEVICES
    moved = {(one.kind, one.axes): one.nbytes for one in measured.collectives}
    weights = 2 * LAYERS * EMBED * HIDDEN * 4 / AXES["tensor"]      # gathered over data in float32
    assert moved["all-gather", ("data",)] == weights


def test_what_is_exposed_adds_up_by_axis(measured) -> None:
    ledger = {entry.name: entry.seconds for entry in measured.ledger}
    for axis in AXES:
        exposed = sum(one.exposed_s for one in measured.collectives if one.axes == (axis,))
        assert exposed == pytest.approx(ledger[f"exposed {axis}"])
    for one in measured.collectives:
        assert one.exposed_s <= one.seconds * (1 + 1e-9)


def test_the_text_beside_says_the_same_as_the_profiles_own_program(measured, recorded) -> None:
    again = measure(read(recorded.file), parse(recorded.text), AXES)
    assert again.ledger == measured.ledger
    sources = {one.source.rpartition("/")[2].partition(":")[0] for one in measured.operations if one.flops}
    assert sources == {"recorded_program.py"}
    assert {(one.name, one.source) for one in again.operations} == {(o.name, o.source) for o in measured.operations}


def test_without_a_mesh_collectives_are_told_apart_by_kind(recorded, measured) -> None:
    again = measure(read(recorded.folder))
    names = {entry.name for entry in again.ledger}
    assert {"exposed all-gather", "exposed all-reduce", "matmul"} <= names
    assert not names & {"exposed data", "exposed tensor"}
    assert any("--mesh" in note for note in again.notes)
    wrong = measure(read(recorded.folder), axes={"data": 3})
    assert any("do not fit the mesh data=3" in note for note in wrong.notes)


def test_the_timeline_holds_every_operation_of_a_step(measured) -> None:
    document = timeline(measured)
    assert document["schema"] == "jaxplan.timeline/1"
    assert document["source"] == "measured"
    assert document["duration_s"] == pytest.approx(measured.step_s)
    assert {"compute", "data", "tensor"} <= set(document["lanes"])
    waited = defaultdict(float)
    loops, trips, events = [], 0, 0

    def visit(node, begin) -> None:
        nonlocal trips, events
        trips += node["name"].startswith("trip")
        loops.extend([node["name"]] * node["name"].startswith("while"))
        for lane, start, duration, _, _, exposed in node["events"]:
            assert begin + start + duration <= document["duration_s"] * (1 + 1e-9)
            waited[document["lanes"][lane]] += exposed
            events += 1
        for child in node["children"]:
            visit(child, begin + child["start_s"])

    visit(document["root"], 0.0)
    assert len(loops) == 2      # forward and backward
    assert trips == 2 * LAYERS
    in_loops = sum(one.executions for one in measured.operations if one.kind == "while")
    assert events == sum(one.executions for one in measured.operations) - in_loops
    assert waited["data"] > 0


def test_what_virtual_devices_wait_for_is_one_finding(measured) -> None:
    titles = [one.title for one in compare(measured).findings]
    assert titles.count("collectives of virtual devices") == 1
    assert not any("not hidden" in title or title == "a straggler" for title in titles)
