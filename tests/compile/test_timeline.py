import dataclasses

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.timeline import Entry, StepTime, timeline
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place
from jaxplan.machine.reached import saturation, sustained_fraction

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
        %f = bf16[8] copy(%p), {CYCLES.format(cycles)}
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
        %f = bf16[8] copy(%p), {CYCLES.format(1500000)}
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
        %f = bf16[8] copy(%p), {CYCLES.format(cycles)}
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


def test_what_computes_beside_a_collective_on_gpus_is_slowed():
    """18.9% longer while it runs (Lee et al. 2025, arXiv:2507.03114); what is left then at full speed."""
    machine, placement = placed("h100", {"data": 1, "fsdp": 8})
    gather = float(seconds("all-gather", 8 * ELEMENTS * 2, placement.links(("fsdp",)).achieved()))

    def beside(rows, kept=True):
        group = "channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, dimensions={0}"
        start = f"%s = (bf16[{ELEMENTS}], bf16[{8 * ELEMENTS}]) all-gather-start(%w), {group}"
        body = f"""%a = bf16[{rows},8448] parameter(0)
            %b = bf16[8448,8448] parameter(1)
            %w = bf16[{ELEMENTS}] parameter(2)
            {start if kept else "%n = bf16[8] parameter(3)"}
            %m = bf16[{rows},8448] dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
            {f"%d = bf16[{8 * ELEMENTS}] all-gather-done(%s)" if kept else ""}
            ROOT %r = bf16[8] bitcast(%m)"""
        return timeline(fixtures.program(body), machine, placement)

    short, long = 128 * 4, 128 * 132
    for rows in (short, long):
        alone = beside(rows, kept=False).value_s
        ledger = {entry.name: entry.seconds for entry in beside(rows).ledger}
        assert ledger["matmul"] == pytest.approx(alone, rel=1e-9)
        assert ledger["slowed by collectives"] == pytest.approx(0.189 * min(alone, gather / 1.189), rel=1e-9)
    assert beside(short).value_s == pytest.approx(gather, rel=1e-9)
    assert beside(long).value_s == pytest.approx(alone + gather * (1 - 1 / 1.189), rel=1e-9)


@pytest.mark.parametrize("cycles, expected", [(1.065e6, 7.1e-4), (1.5e9, None)])
def test_a_tpu_matmul_takes_the_compilers_estimate_or_the_rate_that_is_reached(cycles, expected):
    """1.065 million cycles at 1.5 GHz, or 2 x 4096^3 FLOPs at v5e's 197 TFLOP/s times the fraction that steps reach."""
    machine, _ = placed("v5e", V5E_AXES)
    flops, peak = 2 * 4096**3, machine.device_flops_per_s("bfloat16")
    time = by_hand(
        f"""%a = bf16[4096,4096] parameter(0)
        %b = bf16[4096,4096] parameter(1)
        %m = bf16[4096,4096] dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, \
{CYCLES.format(round(cycles))}
        ROOT %r = bf16[8] bitcast(%m)"""
    )
    started = 1 + saturation(machine) / 4096      # an array fills and drains once a loop of 4096
    reached = flops / (peak * sustained_fraction(machine)) * started
    assert time.value_s == pytest.approx(expected or reached, rel=1e-9)
    assert time.low_s == pytest.approx(flops / peak, rel=1e-9) and time.high_s == pytest.approx(
        max(cycles / 1.5e9, time.value_s), rel=1e-9
    )


def test_the_end_of_an_asynchronous_fusion_is_no_pass_over_memory():
    """It has the gathered array as operand and result, but only waits; the transfer is on the links."""
    inner = f"""%begin (w: bf16[{ELEMENTS}]) -> bf16[{4 * ELEMENTS}] {{
  %w = bf16[{ELEMENTS}] parameter(0)
  ROOT %g = bf16[{4 * ELEMENTS}] all-gather(%w), {GATHER}, \
backend_config={{"async_collective_fusion_config":{{"async_collective_name":"all-gather-start.1"}}}}
}}

%end (g: bf16[{4 * ELEMENTS}]) -> bf16[{4 * ELEMENTS}] {{
  %p = bf16[{4 * ELEMENTS}] parameter(0)
  ROOT %h = bf16[{4 * ELEMENTS}] all-gather(%p), {GATHER}, \
backend_config={{"async_collective_fusion_config":{{"async_collective_name":"all-gather-start.1"}}}}
}}

"""
    body = f"""%p = bf16[8] parameter(0)
        %w = bf16[{ELEMENTS}] parameter(1)
        %s = bf16[{4 * ELEMENTS}] fusion(%w), kind=kCustom, calls=%begin
        %d = bf16[{4 * ELEMENTS}] fusion(%s), kind=kCustom, calls=%end
        ROOT %r = bf16[8] bitcast(%p)"""
    time = timeline(fixtures.program(body, inner), *placed("v5e", V5E_AXES))
    assert [entry.name for entry in time.ledger] == ["exposed fsdp"]
    assert time.value_s == pytest.approx(gather_s(), rel=1e-9)
