import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.buffers import read_peak
from jaxplan.compile.hlo import HloError

PROTOS = ["cpu_mixed", "h100_mixed", "v5e_mixed"]
VMEM = 1


@pytest.mark.parametrize("name", PROTOS)
def test_allocations_agree_with_the_memory_analysis(name):
    peak, memory = read_peak(fixtures.proto(name)), fixtures.record(name)["memory"]
    assert peak.allocated_bytes["parameter"] == memory["argument_size_in_bytes"]
    assert peak.allocated_bytes["output"] == memory["output_size_in_bytes"] - memory["alias_size_in_bytes"]
    if name.startswith("v5e"):  # libtpu also counts scratch of its own among temporaries
        assert (
            0.7 * memory["temp_size_in_bytes"]
            < peak.allocated_bytes["temporary"]
            <= memory["temp_size_in_bytes"]
        )
    else:
        assert peak.allocated_bytes["temporary"] == memory["temp_size_in_bytes"]


def test_live_buffers_are_what_the_gpu_compiler_calls_the_peak():
    # XLA's own heap simulation for the GPU reports the live bytes at the peak, gaps left out.
    peak, memory = read_peak(fixtures.proto("h100_mixed")), fixtures.record("h100_mixed")["memory"]
    assert peak.total_bytes - peak.gap_bytes == memory["peak_memory_in_bytes"]


@pytest.mark.parametrize("name", PROTOS)
def test_buffers_and_gaps_add_up(name):
    peak = read_peak(fixtures.proto(name))
    assert sum(buffer.nbytes for buffer in peak.buffers) + peak.gap_bytes == peak.total_bytes
    assert list(peak.buffers) == sorted(peak.buffers, key=lambda buffer: -buffer.nbytes)
    assert 0 <= peak.gap_bytes < peak.total_bytes / 4


@pytest.mark.parametrize("name", PROTOS)
def test_parameters_are_named_with_their_shapes(name):
    model = fixtures.model(name)
    named = {
        buffer.op_name: buffer
        for buffer in read_peak(fixtures.proto(name)).buffers
        if buffer.kind == "parameter"
    }
    gate = named["params['layers']['gate']"]  # (layers, embed/fsdp, mlp/tensor)
    assert gate.shape == f"f32[{model.layers},{model.embed // 2},{model.mlp // 2}]"
    assert gate.nbytes == 4 * model.layers * model.embed // 2 * model.mlp // 2


def test_on_chip_memory_is_another_space():
    vmem = read_peak(fixtures.proto("v5e_mixed"), VMEM)
    assert set(vmem.allocated_bytes) == {"temporary"}
    assert vmem.total_bytes < 128 * 2**20  # a v5e core has 128 MiB of VMEM (scaling book, tpus.md)


@pytest.mark.parametrize("proto", [b"", b"\x08", b"\x0b\x00", b"\x1a\xff"])
def test_what_is_no_proto_is_an_error(proto):
    with pytest.raises(HloError):
        read_peak(proto)


def test_a_truncated_proto_is_an_error():
    whole = fixtures.proto("h100_mixed")
    with pytest.raises(HloError, match="cut off"):
        read_peak(whole[: len(whole) // 2])
