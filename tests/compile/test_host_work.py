"""The work of CPU instructions against counts by hand, and their time against prices by hand."""

import sys
from pathlib import Path

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.hlo import Shape
from jaxplan.compile.host_cost import HostCosts
from jaxplan.compile.host_work import loop_work, order_of, work_of
from jaxplan.compile.timeline import timeline
from jaxplan.machine import catalogue
from jaxplan.machine.attached_machine import attached_machine
from jaxplan.machine.placement import place

sys.path.insert(0, str(Path(__file__).parent.parent / "machine"))
import made_calibrations as made

LOOP = """%body (x: f32[100,20]) -> f32[100,20] {
  %x = f32[100,20]{1,0} parameter(0)
  %e = f32[100,20]{1,0} exponential(%x)
  ROOT %a = f32[100,20]{1,0} add(%e, %x)
}

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

"""
PARTS = 'backend_config={"outer_dimension_partitions":["2"]}'


def works(body, parallel=1, others=LOOP):
    module = fixtures.program(body, others)
    return {one.name: work_of(module, one, parallel) for one in module.entry.instructions}


def some(work, *names):
    return {name: work.get(name, 0) for name in names}


def test_a_fusion_reads_writes_and_computes():
    found = works(
        f"""
        %p = f32[100,20]{{1,0}} parameter(0)
        ROOT %f = f32[100,20]{{1,0}} fusion(%p), kind=kLoop, calls=%body, {PARTS}
        """
    )
    assert found["p"] == {}
    expected = {"bytes read": 8000, "bytes written": 8000, "transcendental": 2000, "arithmetic": 2000, "operations": 1}
    assert {k: v for k, v in found["f"].items() if v} == expected


def test_a_loop_in_two_parts_takes_half_where_two_cores_are_free():
    body = f"""
        %p = f32[100,20]{{1,0}} parameter(0)
        ROOT %f = f32[100,20]{{1,0}} fusion(%p), kind=kLoop, calls=%body, {PARTS}
        """
    assert works(body, parallel=4)["f"]["transcendental"] == 1000
    assert works(body.replace(PARTS, "").replace("%body, ", "%body"), parallel=4)["f"]["transcendental"] == 2000


def test_a_matmul_counts_its_flops_by_the_dtype_of_its_operands():
    found = works(
        """
        %p = bf16[4,32,16]{2,1,0} parameter(0)
        %q = bf16[4,16,64]{2,1,0} parameter(1)
        ROOT %d = f32[4,32,64]{2,1,0} dot(%p, %q), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
        """  # noqa: E501
    )
    names = ("matmul bf16 FLOPs", "matmul bf16 bytes", "matmul matrices", "matmul f32 FLOPs", "bytes read")
    moved = 2 * (4 * 32 * 16 + 4 * 16 * 64) + 4 * 4 * 32 * 64
    assert some(found["d"], *names) == dict(zip(names, (2 * 4 * 32 * 16 * 64, moved, 4, 0, 0), strict=True))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((64, 1024), "read 4096 bytes apart"),
        ((64, 256), "read 1024 bytes apart"),
        ((64, 250), "read any number of bytes apart"),
    ],
)
def test_a_copy_into_another_order_reads_rows_apart(shape, name):
    rows, columns = shape
    found = works(
        f"""
        %p = f32[{rows},{columns}]{{1,0}} parameter(0)
        ROOT %c = f32[{rows},{columns}]{{0,1}} copy(%p)
        """
    )
    assert found["c"][name] == rows * columns


def test_a_copy_in_the_same_order_only_copies():
    found = works("%p = f32[64,64]{1,0} parameter(0)\nROOT %c = f32[64,64]{1,0} copy(%p)")
    assert {k: v for k, v in found["c"].items() if v} == {"bytes copied": 2 * 64 * 64 * 4, "operations": 1}


def test_a_transpose_of_outer_dims_keeps_its_runs():
    found = works(
        "%p = f32[8,16,32]{2,1,0} parameter(0)\n"
        "ROOT %t = f32[16,8,32]{2,1,0} transpose(%p), dimensions={1,0,2}"
    )
    assert found["t"]["rearranged"] == 8 * 16 * 32
    assert order_of(Shape("f32", (2, 3), "")) == order_of(Shape("f32", (2, 3), "{1,0}")) == (1, 0)


def test_sums_along_and_across_rows_are_told_apart():
    found = works(
        """
        %p = f32[100,20]{1,0} parameter(0)
        %z = f32[] constant(0)
        %r = f32[100]{0} reduce(%p, %z), dimensions={1}, to_apply=%sum
        ROOT %c = f32[20]{0} reduce(%p, %z), dimensions={0}, to_apply=%sum
        """
    )
    assert found["r"]["reduced along rows"] == 2000 and found["c"]["reduced across rows"] == 2000


TWICE = (
    LOOP
    + """%step (t: (s32[], f32[100,20])) -> (s32[], f32[100,20]) {
  %t = (s32[], f32[100,20]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[100,20]{1,0} get-tuple-element(%t), index=1
  %f = f32[100,20]{1,0} fusion(%x), kind=kLoop, calls=%body
  ROOT %u = (s32[], f32[100,20]{1,0}) tuple(%i, %f)
}

%until (t: (s32[], f32[100,20])) -> pred[] {
  %t = (s32[], f32[100,20]{1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

"""
)
LOOPED = """
    %p = (s32[], f32[100,20]{1,0}) parameter(0)
    %w = (s32[], f32[100,20]) while(%p), condition=%until, body=%step, backend_config={"known_trip_count":{"n":"7"}}
    ROOT %g = f32[100,20]{1,0} get-tuple-element(%w), index=1
    """


def test_the_work_of_a_loop_is_that_of_one_trip():
    module = fixtures.program(LOOPED, TWICE)
    assert loop_work(module, 1)["transcendental"] == 2000


def test_a_program_takes_its_work_times_the_prices():
    machine = attached_machine(made.of_cpu(), 4)
    time = timeline(fixtures.program(LOOPED, TWICE), machine, place(machine, {"data": 4}))
    # its exponentials have no price
    one = 4 * (8000 * 1e-10 + 8000 * 2e-10 + 2000 * 3e-10 + 1e-6)
    start = 4e-5        # of a launch; the loop's memory is too little to be taken anew
    assert time.value_s == pytest.approx(7 * one + start)
    assert time.uncovered == {"transcendental": 1}
    assert time.low_s == pytest.approx(7 * one * 0.9) and time.high_s >= time.value_s
    assert time.step.duration_s == pytest.approx(time.value_s)
    assert {entry.name: entry.seconds for entry in time.ledger}["launch"] == pytest.approx(start)


def test_the_same_program_is_slower_the_more_devices_work():
    module, times = fixtures.program(LOOPED, TWICE), []
    for devices in (1, 2, 4, 8):
        machine = attached_machine(made.of_cpu(), devices)
        times.append(timeline(module, machine, place(machine, {"data": devices})).value_s)
    assert times == sorted(times) and times[-1] > 2 * times[0]


def test_a_whole_step_is_priced_and_adds_up():
    machine = attached_machine(made.of_cpu(), 8)
    name = "cpu_mixed"
    time = timeline(fixtures.module(name), machine, place(machine, fixtures.axes(name)))
    assert sum(entry.seconds for entry in time.ledger) == pytest.approx(time.value_s)
    floor = fixtures.model(name).matmul_flops() / 8 * 8e-11
    assert time.value_s > floor
    assert any(entry.name.startswith("exposed") for entry in time.ledger)


def test_a_machine_without_a_calibration_is_refused():
    with pytest.raises(ValueError, match="has no calibration"):
        HostCosts(fixtures.program(LOOPED, TWICE), catalogue.machine("1x8", "h100"))
