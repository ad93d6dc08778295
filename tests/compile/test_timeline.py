import dataclasses

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.timeline import Entry, StepTime, timeline
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place

MACHINES = {
    "h100": ("1x8", "h100"),
    "v5e": ("2x4", "v5e"),
    "v5p": ("2x2x2", "v5p"),
    "v6e": ("2x4", "v6e"),
    "tpu7x": ("2x2x1", "tpu7x"),
}
TARGET_STEPS = [name for name in fixtures.STEPS if not name.startswith("cpu")]


def placed(chip, axes):
    mesh, chip = MACHINES[chip]
    machine = catalogue.machine(mesh=mesh, chip=chip)
    return machine, place(machine, axes)


def step_time(name):
    return timeline(fixtures.module(name), *placed(name.split("_")[0], fixtures.axes(name)))


@pytest.mark.parametrize("name", TARGET_STEPS)
def test_ledger_adds_up_and_bounds_hold(name):
    time = step_time(name)
    assert sum(entry.seconds for entry in time.ledger) == pytest.approx(time.value_s, rel=1e-12)
    assert 0 < time.low_s <= time.value_s <= time.high_s
    compute = sum(entry.seconds for entry in time.ledger if not entry.name.startswith("exposed"))
    exposed = sum(entry.seconds for entry in time.ledger if entry.name.startswith("exposed"))
    assert exposed <= sum(entry.seconds for entry in time.communication) + time.high_s - compute
    assert time.uncovered == {} and time.unknown_trip_counts == 0


@pytest.mark.parametrize("name", TARGET_STEPS)
def test_matmuls_take_no_less_than_the_peak_allows(name):
    machine, _ = placed(name.split("_")[0], fixtures.axes(name))
    model = fixtures.model(name)
    time = {entry.name: entry.seconds for entry in step_time(name).ledger}
    floor = model.matmul_flops() / fixtures.DEVICES / machine.device_flops_per_s("bfloat16")
    assert (
        floor <= time["matmul"] <= 8 * floor
    )  # shapes this small fill no array; more than 8 would be a misreading


def test_an_inconsistent_ledger_is_refused():
    with pytest.raises(ValueError, match="add up"):
        StepTime(2.0, 1.0, 3.0, (Entry("matmul", 1.0),))
    with pytest.raises(ValueError, match="low <= value"):
        StepTime(2.0, 2.5, 3.0, (Entry("matmul", 2.0),))


CYCLES = 'backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}'
FUSION = """%fused (x: bf16[8]) -> bf16[8] {
  ROOT %x = bf16[8] parameter(0)
}

"""
GATHER = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, dimensions={0}"
ELEMENTS = 64 * 2**20
V5E_AXES = {"data": 2, "fsdp": 4}


def gather_s():
    _, placement = placed("v5e", V5E_AXES)
    return float(seconds("all-gather", 4 * ELEMENTS * 2, placement.links(("fsdp",)).achieved()))


def by_hand(body):
    return timeline(fixtures.program(body, FUSION), *placed("v5e", V5E_AXES))


def overlapped(cycles):
    return by_hand(
        f"""%p = bf16[8] parameter(0)
        %w = bf16[{ELEMENTS}] parameter(1)
        %s = (bf16[{ELEMENTS}], bf16[{4 * ELEMENTS}]) all-gather-start(%w), {GATHER}
        %f = bf16[8] fusion(%p), kind=kLoop, calls=%fused, {CYCLES.format(cycles)}
        %d = bf16[{4 * ELEMENTS}] all-gather-done(%s)
        ROOT %r = bf16[8] bitcast(%f)"""
    )


def test_compute_hides_a_collective_as_far_as_it_lasts():
    clock = catalogue.chip("v5e").clock_hz
    gather = gather_s()
    short = overlapped(round(gather / 2 * clock))  # half is hidden
    assert short.value_s == pytest.approx(gather, rel=1e-6)
    assert {entry.name for entry in short.ledger} == {"memory-bound", "exposed fsdp"}
    assert {e.name: e.seconds for e in short.ledger}["exposed fsdp"] == pytest.approx(gather / 2, rel=1e-6)
    assert short.high_s == pytest.approx(1.5 * gather, rel=1e-6)
    long = overlapped(round(3 * gather * clock))
    assert long.value_s == pytest.approx(3 * gather, rel=1e-6)
    assert [entry.name for entry in long.ledger] == ["memory-bound"]


def test_a_synchronous_collective_is_all_exposed():
    time = by_hand(
        f"""%p = bf16[8] parameter(0)
        %w = bf16[{ELEMENTS}] parameter(1)
        %f = bf16[8] fusion(%p), kind=kLoop, calls=%fused, {CYCLES.format(1500000)}
        %g = bf16[{4 * ELEMENTS}] all-gather(%w), {GATHER}
        ROOT %r = bf16[8] bitcast(%f)"""
    )
    assert time.value_s == pytest.approx(1e-3 + gather_s(), rel=1e-6)  # 1.5 million cycles at 1.5 GHz
    assert time.high_s == pytest.approx(time.value_s, rel=1e-9)


def transfers(machine, cycles):
    """Out: a slice into the host's stack of four; in: a whole array; between them compute of so many cycles."""
    body = f"""%p = bf16[8] parameter(0)
        %stack = f32[4,{ELEMENTS}]{{1,0:S(5)}} parameter(1)
        %slice = f32[1,{ELEMENTS}] parameter(2)
        %zero = s32[] constant(0)
        %s = ((f32[4,{ELEMENTS}]{{1,0:S(5)}}, f32[1,{ELEMENTS}], s32[], s32[]), f32[4,{ELEMENTS}]{{1,0:S(5)}}, \
u32[]) dynamic-update-slice-start(%stack, %slice, %zero, %zero)
        %f = bf16[8] fusion(%p), kind=kLoop, calls=%fused, {CYCLES.format(cycles)}
        %d = f32[4,{ELEMENTS}]{{1,0:S(5)}} dynamic-update-slice-done(%s)
        %c = (f32[4,{ELEMENTS}], f32[4,{ELEMENTS}]{{1,0:S(5)}}, u32[]) copy-start(%d)
        %e = f32[4,{ELEMENTS}] copy-done(%c)
        ROOT %r = bf16[8] bitcast(%f)"""
    return timeline(fixtures.program(body, FUSION), machine, place(machine, V5E_AXES))


def test_transfers_to_and_from_the_host_take_the_links_time():
    machine, _ = placed("v5e", V5E_AXES)
    moved = 4 * ELEMENTS                                # of float32
    out = moved / machine.chip.host_bytes_per_s         # the slice alone moves, not the stack that it is put into
    time = transfers(machine, round(out / 2 * machine.chip.clock_hz))
    assert time.host_bytes == 5 * moved
    assert time.value_s == pytest.approx(5 * out, rel=1e-6)                 # the first half of the way out is hidden
    assert {e.name: e.seconds for e in time.ledger}["exposed host transfers"] == pytest.approx(4.5 * out, rel=1e-6)
    assert time.low_s == pytest.approx(5 * out, rel=1e-6) and time.high_s == pytest.approx(5.5 * out, rel=1e-6)


def test_transfers_of_a_chip_whose_link_nobody_knows_are_counted_only():
    machine, _ = placed("v5e", V5E_AXES)
    silent = dataclasses.replace(machine, chip=dataclasses.replace(machine.chip, host_bytes_per_s=None))
    time = transfers(silent, 1500)
    assert time.host_bytes == 5 * 4 * ELEMENTS and [e.name for e in time.ledger] == ["memory-bound"]


def test_collectives_on_the_same_links_queue_and_on_others_do_not():
    def two(second):
        return by_hand(
            f"""%p = bf16[8] parameter(0)
            %w = bf16[{ELEMENTS}] parameter(1)
            %s = (bf16[{ELEMENTS}], bf16[{4 * ELEMENTS}]) all-gather-start(%w), {GATHER}
            %t = (bf16[{ELEMENTS}], bf16[{2 * ELEMENTS}]) all-gather-start(%w), {second}
            %d = bf16[{4 * ELEMENTS}] all-gather-done(%s)
            %e = bf16[{2 * ELEMENTS}] all-gather-done(%t)
            ROOT %r = bf16[8] bitcast(%p)"""
        )

    data = "channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, dimensions={0}"
    _, placement = placed("v5e", V5E_AXES)
    other = float(seconds("all-gather", 2 * ELEMENTS * 2, placement.links(("data",)).achieved()))
    assert two(data).value_s == pytest.approx(max(gather_s(), other), rel=1e-6)
    assert two(GATHER).value_s == pytest.approx(2 * gather_s(), rel=1e-6)


def test_loops_multiply_their_body():
    once = step_time("v5e_mixed")
    module = fixtures.module("v5e_mixed")
    # The same module with twice the trips: every loop compares its counter with 3.
    text = fixtures.text("v5e_mixed").replace("s32[]{:T(128)} constant(3)", "s32[]{:T(128)} constant(6)")
    assert text != fixtures.text("v5e_mixed") and module.devices == 8
    from jaxplan.compile.hlo import parse

    twice = timeline(parse(text), *placed("v5e", fixtures.axes("v5e_mixed")))
    attention = [{e.name: e.seconds for e in time.ledger}["attention"] for time in (once, twice)]
    assert attention[1] == pytest.approx(2 * attention[0], rel=1e-9)


def test_measured_rates_make_the_value_and_data_sheets_the_low():
    machine, placement = placed("h100", fixtures.axes("h100_fsdp"))
    module = fixtures.module("h100_fsdp")
    ideal = dataclasses.replace(machine.chip, measured={}, collective_fraction=1.0)
    measured = timeline(module, machine, placement)
    sheet_machine = dataclasses.replace(machine, chip=ideal)
    sheet = timeline(module, sheet_machine, place(sheet_machine, fixtures.axes("h100_fsdp")))
    assert sheet.low_s == pytest.approx(measured.low_s, rel=1e-9)
    assert sheet.value_s < measured.value_s
