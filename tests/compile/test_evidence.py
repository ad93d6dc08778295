"""Evidence: which figure is believed, when a plan fits, and that it survives JSON."""

import dataclasses
import json

import pytest

from jaxplan.compile.evidence import (
    Buffer,
    Diagnostic,
    Donation,
    Evidence,
    Memory,
    Schedule,
    Traffic,
)

GB = 10**9


def memory(platform="tpu", argument=4 * GB, output=3 * GB, alias=3 * GB, temp=2 * GB, peak=5 * GB):
    return Memory(platform, argument, output, alias, temp, peak)


# Measured on the program of a 16-layer scan of tanh(sin(x @ w)), x (8192, 256), per-layer rematerialization:
# on the host the peak omits 436 MB of temporaries, on v5e temp reads 0 while the peak is 157 MB.
@pytest.mark.parametrize(
    ("platform", "argument", "temp", "peak", "expected"),
    [
        ("cpu", 8_400_000, 436_000_000, 16_800_000, 444_400_000),
        ("tpu", 16_800_000, 0, 157_000_000, 157_000_000),
        ("cuda", 8_000_000, 562_000_000, 568_000_000, 570_000_000),
    ],
)
def test_which_figure_is_the_high_water_mark(platform, argument, temp, peak, expected):
    assert Memory(platform, argument, 0, 0, temp, peak).total_bytes == expected


def test_a_tpus_buffer_assignment_is_believed():
    """v5e 2x4, tiny decoder, 1,024 sequences a device: for 1,536 the compiler says it needs 21.09 GiB."""
    gib = 2**30
    sizes = (int(0.03 * gib), 0, 0, int(18.42 * gib), int(14.07 * gib))
    measured = Memory("tpu", *sizes, assigned_bytes=int(14.075 * gib))
    assert measured.total_bytes * 1536 / 1024 == pytest.approx(21.09 * gib, rel=0.002)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_peak_that_may_be_the_hosts_is_not_believed(platform):
    """16 layers on H100 and v5e, 3,332 MiB offloaded: the peak of 3,652 MiB is arguments, outputs and the host's."""
    mib = 2**20
    measured = Memory(platform, 160 * mib, 160 * mib, 0, 1861 * mib, 3652 * mib, host_bytes=3332 * mib)
    assert measured.total_bytes == 2181 * mib
    assert dataclasses.replace(measured, host_bytes=0).total_bytes == 3652 * mib


def test_outputs_updated_in_place_count_once():
    assert memory("cuda", peak=0).total_bytes == 6 * GB
    assert dataclasses.replace(memory("cuda", peak=0), alias_bytes=0).total_bytes == 9 * GB


def test_a_gpu_plan_that_is_too_large_is_refused_by_us():
    evidence = Evidence("compiled", "ok", "cuda", capacity_bytes=5 * GB, memory=memory("cuda")).judged()
    assert evidence.status == "does not fit" and evidence.fits is False and not evidence.ok
    assert evidence.message == "it takes 5.59 GiB of 4.66 GiB a device" and evidence.needed_bytes == 6 * GB


def test_a_partitioned_plan_is_refused_for_its_arguments_only():
    evidence = Evidence("partitioned", "ok", "cpu", capacity_bytes=5 * GB, memory=memory("cpu"))
    assert evidence.judged().ok and evidence.fits is True
    small = dataclasses.replace(evidence, capacity_bytes=3 * GB).judged()
    assert small.status == "does not fit" and "arguments alone" in small.message


def test_nothing_known_is_not_a_verdict():
    crashed = Evidence("compiled", "crashed", "tpu", "SIGSEGV", capacity_bytes=5 * GB)
    assert crashed.fits is None and crashed.total_bytes is None and crashed.step_time_s is None
    assert crashed.judged() is crashed and crashed.bottleneck == ""


def test_a_refused_program_says_what_it_needed():
    assert Evidence("compiled", "does not fit", "tpu", needed_bytes=32 * GB).total_bytes == 32 * GB


def test_donation():
    assert Donation(100, 100).fraction == 1.0 and Donation(100, 25).fraction == 0.25
    assert Donation(0, 0).fraction == 1.0


def test_json_round_trip():
    evidence = Evidence(
        "compiled",
        "ok",
        "tpu",
        compiler="libtpu 0.0.42 for v5e:2x4",
        seconds=30.5,
        stage_seconds={"compile": 29.0},
        capacity_bytes=16 * GB,
        memory=dataclasses.replace(memory(), by_kind={"parameters": 4 * GB, "temporaries": 2 * GB}),
        init_memory=memory(),
        buffers=(Buffer("fusion.1", "bf16[4,8]", 64, "temporary"),),
        flops={"matmul": 1e12},
        uncovered={"mystery": 2},
        traffic=(Traffic("all-gather", ("data", "fsdp"), 2, 64, 1e9, 0.1),),
        diagnostics=(Diagnostic("rematerialization", "a sentence", "dot.1", 17),),
        schedule=Schedule(1.5, 1.0, 2.0, (("matmul", 1.0), ("exposed", 0.5)), (("all-gather fsdp", 0.7),)),
        donation=Donation(100, 100, ("a note",)),
        output_shardings=("x: got P(), expected P('data')",),
        versions={"jax": "0.10.2"},
        flags={"xla_a": "true"},
        partitioner="shardy",
        notes=("a note",),
    )
    text = json.dumps(evidence.to_json())
    again = Evidence.from_json(json.loads(text), from_cache=True)
    assert again == evidence and again.from_cache and json.dumps(again.to_json()) == text
    assert again.bottleneck == "matmul" and again.step_time_s == sum(s for _, s in again.schedule.ledger)
    assert json.loads(text)["total_bytes"] == evidence.total_bytes and json.loads(text)["fits"] is True
