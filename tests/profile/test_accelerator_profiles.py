"""The same step as a TPU's and as a GPU's profiler would write it: one ledger, worked out by hand in `made_spaces`."""

from pathlib import Path

import pytest
from made_spaces import AXES, HLO, LEDGER_US, PERIOD, STEPS, gpu, tpu

from jaxplan.compile.hlo import parse
from jaxplan.compile.xspace import xspace
from jaxplan.profile.kinds import Kinds
from jaxplan.profile.measured import Measured, measure
from jaxplan.profile.measured_timeline import timeline
from jaxplan.profile.trace import read

US = 1e-6
MADE = {"tpu": tpu, "gpu": gpu}


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "worker-0.xplane.pb"
    path.write_bytes(raw)
    return path


def ledger_us(measured: Measured) -> dict[str, float]:
    return {entry.name: round(entry.seconds / US, 6) for entry in measured.ledger}


@pytest.fixture(params=sorted(MADE))
def measured(request, tmp_path):
    return measure(read(written(tmp_path, MADE[request.param]())), parse(HLO), AXES)


def test_the_ledger_is_the_one_worked_out_by_hand(measured) -> None:
    assert measured.steps == pytest.approx([PERIOD * US] * STEPS)
    assert ledger_us(measured) == LEDGER_US
    assert sum(LEDGER_US.values()) == PERIOD
    assert measured.attributed_s == pytest.approx(measured.total_s)


def test_collectives_are_joined_to_their_axes_and_bytes(measured) -> None:
    found = {(one.kind, one.axes): one for one in measured.collectives}
    gather, reduce = found["all-gather", ("data", "tensor")], found["all-reduce", ("tensor",)]
    matrix = 64 * 64 * 4
    assert (gather.executions, gather.nbytes) == (1, matrix)
    assert (gather.seconds, gather.exposed_s) == pytest.approx((120 * US, 20 * US))
    assert (reduce.executions, reduce.nbytes) == (1, matrix)
    assert (reduce.seconds, reduce.exposed_s) == pytest.approx((50 * US, 50 * US))
    assert len(found) == 2


def test_the_device_that_works_longer_is_behind(measured) -> None:
    first, second = measured.devices
    assert (first.work_s, second.work_s) == pytest.approx((230 * US, 250 * US))
    assert (first.exposed_s, second.exposed_s) == pytest.approx((80 * US, 60 * US))
    assert (first.behind_s, second.behind_s) == pytest.approx((-10 * US, 10 * US))
    assert first.idle_s == pytest.approx(90 * US)


def test_operations_carry_what_the_hlo_knows(measured) -> None:
    dot = next(one for one in measured.operations if one.name == "dot.1")
    assert dot.flops == 2 * 64**3
    assert dot.nbytes == 3 * 64 * 64 * 4
    assert dot.source == "/home/you/train.py:7"
    assert (dot.executions, dot.seconds) == (1, pytest.approx(110 * US))
    known = 0 if measured.platform == "tpu" else 10 / (380 + 50)     # a GPU's copy is no instruction
    assert measured.unknown == pytest.approx(known, abs=0.02)


def test_the_timeline_shows_what_the_device_waits_for(measured) -> None:
    document = timeline(measured, device=1)
    events = {event[3]: event for event in document["root"]["events"]}
    lanes = document["lanes"]
    assert document["duration_s"] == pytest.approx(PERIOD * US)
    dot = events["jit(step)/dot_general"]
    assert (lanes[dot[0]], dot[1], dot[2], dot[5]) == ("compute", pytest.approx(70 * US), pytest.approx(120 * US), 0)
    gather = next(event for event in document["root"]["events"] if event[4] == "all-gather" and event[2] > 100 * US)
    assert lanes[gather[0]] == "data+tensor"
    assert gather[5] == pytest.approx(10 * US)


@pytest.mark.parametrize("raw", [gpu(launches=False), gpu(annotations=False), tpu(steps_line=False)])
def test_without_steps_executions_count(raw, tmp_path) -> None:
    measured = measure(read(written(tmp_path, raw)), parse(HLO), AXES)
    assert measured.steps[1:] == pytest.approx([PERIOD * US] * (STEPS - 1))
    assert measured.steps[0] == pytest.approx((PERIOD - 70) * US)       # nothing tells when the host began
    assert any("counts as a step" in note for note in measured.notes)


def test_without_hlo_names_tell_the_kinds(tmp_path) -> None:
    for make in (gpu, tpu):
        measured = measure(read(written(tmp_path, make())))
        known = ledger_us(measured)
        assert known["matmul"] == LEDGER_US["matmul"]
        assert known["memory-bound"] == LEDGER_US["memory-bound"]
        assert known["exposed all-gather"] == LEDGER_US["exposed data+tensor"]
        assert known["exposed all-reduce"] == LEDGER_US["exposed tensor"]
        assert any("--hlo" in note for note in measured.notes)


@pytest.mark.parametrize("make", [gpu, tpu])
def test_the_profiles_own_program_is_enough(make, tmp_path) -> None:
    from jaxlib._hlo import hlo_module_from_text

    module = hlo_module_from_text(HLO).as_serialized_hlo_module_proto()
    measured = measure(read(written(tmp_path, make() + xspace([message(module)]))), axes=AXES)
    assert ledger_us(measured) == LEDGER_US
    assert not any("--hlo" in note for note in measured.notes)
    damaged = message(message(b"jit_step"))     # a module that has a name and nothing else
    again = measure(read(written(tmp_path, make() + xspace([damaged]))), axes=AXES)
    assert any("not understood here" in note for note in again.notes)
    assert ledger_us(again)["matmul"] == LEDGER_US["matmul"]


def message(content: bytes) -> bytes:
    """A message whose first field holds that content."""
    size = len(content)
    return b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + content


def test_command_buffers_are_noticed_and_their_kernels_still_counted(tmp_path) -> None:
    measured = measure(read(written(tmp_path, gpu(graphs=True))), parse(HLO), AXES)
    assert ledger_us(measured) == LEDGER_US
    note = next(note for note in measured.notes if "command buffers" in note)
    hidden = (100 + 120) / 2 + 40 + 80
    assert note.startswith(f"{hidden / (hidden + 120 + 50 + 10):.0%} of the devices' time")
    assert "--xla_gpu_enable_command_buffer=" in note
    assert measured.unknown > 0.5


def test_profilers_may_leave_out_the_start_of_an_asynchronous_name() -> None:
    kind = Kinds(parse(HLO), AXES).of("all-gather.1")
    assert (kind.entry, kind.begins) == ("exposed data+tensor", True)


def test_hosts_are_one_trace(tmp_path) -> None:
    for host in ("worker-0", "worker-1"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(gpu().replace(b"worker-0", host.encode()))
    measured = measure(read(tmp_path), parse(HLO), AXES)
    assert [(one.host, one.ordinal) for one in measured.devices] == [
        ("worker-0", 0), ("worker-0", 1), ("worker-1", 0), ("worker-1", 1),
    ]  # fmt: skip
    assert ledger_us(measured) == LEDGER_US
