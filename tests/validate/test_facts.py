"""A device of a published run."""

import pytest
from made_runs import LLAMA_8B, run

from jaxplan.validate.facts import case_of, measured_matmul
from jaxplan.validate.models import Unpredictable

TPU = {"framework": "MaxText (JAX)"}


def chip(**changes):
    return case_of(run(**changes)).facts.chip


@pytest.mark.parametrize(
    ("changes", "wide", "narrow", "memory"),
    [
        # data sheets: dense peaks in bfloat16 and in the run's narrow type, bytes a second
        ({"chip": "a100-80"}, 312e12, 312e12, 2.039e12),
        ({"chip": "h100-sxm", "precision": "fp8"}, 989.4e12, 1978.9e12, 3.35e12),
        ({"chip": "b200", "precision": "fp8"}, 2.25e15, 4.5e15, 8e12),
        ({"chip": "b200", "precision": "nvfp4"}, 2.25e15, 9e15, 8e12),
        (TPU | {"chip": "tpu-v5e", "precision": "int8"}, 197e12, 394e12, 0.819e12),
        (TPU | {"chip": "tpu-v5p"}, 459e12, 459e12, 2.765e12),
        (TPU | {"chip": "tpu-v6e"}, 918e12, 918e12, 1.64e12),
    ],
)
def test_data_sheets(changes, wide, narrow, memory):
    found = chip(**changes)
    assert found.flops_per_s == pytest.approx(wide, rel=0.02)
    assert found.narrow_flops_per_s == pytest.approx(narrow, rel=0.02)
    assert found.hbm_bytes_per_s == pytest.approx(memory, rel=0.03)


def test_a_device_of_a_chip_with_two_is_half_of_it():
    """TPU 7x: 2307 TFLOP/s, 7.38 TB/s and 192 GiB a chip, of which JAX sees two devices."""
    found = chip(**TPU, chip="tpu7x")
    assert found.flops_per_s == pytest.approx(2307e12 / 2, rel=0.01)
    assert found.hbm_bytes_per_s == pytest.approx(7.38e12 / 2, rel=0.02)
    assert found.capacity_bytes < 96 * 2**30


def test_cores_and_arrays():
    """108 multiprocessors (A100), 132 (H100 SXM); arrays of 128 (v5p) and 256 (v6e)."""
    assert (chip(chip="a100-80").cores, chip().cores) == (108, 132)
    assert (chip(**TPU, chip="tpu-v5p").tile, chip(**TPU, chip="tpu-v6e").tile) == (128, 256)
    assert (chip(**TPU, chip="tpu-v5p").tpu, chip().tpu) == (1, 0)


def test_a_machines_own_measurement_holds_for_its_runs_only():
    simumax = run(source="MooreThreads/SimuMax docs/b200", chip="b200")
    assert measured_matmul(simumax, "b200") == 0.488 and measured_matmul(simumax, "h100") is None
    assert measured_matmul(run(source="somebody else"), "b200") is None
    assert case_of(simumax).measured_matmul == 0.488


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unreadable": "n_devices: input should be a valid integer"}, "n_devices"),
        ({"chip": "trainium2"}, "trainium2"),
        ({"seq_len": None}, "seq_len"),
        ({"model": LLAMA_8B.model_copy(update={"vocab": None})}, "model.vocab"),
    ],
)
def test_what_is_not_known_is_said(changes, reason):
    with pytest.raises(Unpredictable, match=reason):
        case_of(run(**changes))
