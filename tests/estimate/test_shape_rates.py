"""Matmuls by shape: padding and quantisation by hand, and the roofline."""

from dataclasses import replace

import pytest
from shape_facts import GPU, IDEAL, TPU

from jaxplan.estimate.shapes.rates import matmul_s, padding

A100 = replace(GPU, cores=108)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (1280, 2560, 108 / 100),            # 10 x 10 tiles of 128 x 256 on 108 cores: one wave, 8 cores idle
        (1280, 2816, 216 / 110),            # 110 tiles: two waves
        (128 * 108, 256, 1.0),              # a whole wave
        (1280, 2500, 108 / 100 * 2560 / 2500),      # columns padded to 128 as well
    ],
)
def test_waves_of_tiles(rows, columns, expected):
    """NVIDIA, Matrix Multiplication Background User's Guide, tile and wave quantization, by hand."""
    assert padding(A100, replace(IDEAL, wave=1), rows, 4096, columns, 0) == pytest.approx(expected)
    assert padding(A100, replace(IDEAL, wave=0.5), rows, 4096, 2560, 0) <= padding(
        A100, replace(IDEAL, wave=1), rows, 4096, 2560, 0
    )


def test_a_tpu_pads_two_dims_to_its_array():
    assert padding(TPU, IDEAL, 1000, 200, 100, 0) == pytest.approx(256 / 200 * 128 / 100)
    assert padding(replace(TPU, tile=256), IDEAL, 1000, 200, 100, 0) == pytest.approx(256 / 200 * 256 / 100)
    assert padding(TPU, IDEAL, 1000, 512, 1024, 0) == 1


def test_filling_a_pipeline_costs_its_length_in_every_loop():
    """A loop of 1000 and one of 500 and 250: the mean of 1/1000 + 1/500 + 1/250, times 150."""
    filled = padding(GPU, replace(IDEAL, saturation=150), 1000, 500, 256, 0) / padding(GPU, IDEAL, 1000, 500, 256, 0)
    assert filled == pytest.approx(1 + 150 * (1 / 1000 + 1 / 500 + 1 / 256) / 3)


def test_the_longer_of_flops_and_bytes():
    """4096^3: 137 GFLOP at 1e15 are 137 us, 101 MB at 3e12 are 34 us. One row: 34 MB are 11 us."""
    ideal = replace(IDEAL, wave=0)
    assert matmul_s(GPU, ideal, 4096, 4096, 4096, 0) == pytest.approx(2 * 4096**3 / 1e15)
    assert matmul_s(GPU, ideal, 1, 4096, 4096, 0) == pytest.approx(2 * (4096**2 + 2 * 4096) / 3e12)
    assert matmul_s(GPU, ideal, 4096, 4096, 4096, 1) == pytest.approx(2 * 4096**3 / 2e15)
    assert matmul_s(GPU, replace(ideal, sustained=0.5), 4096, 4096, 4096, 0) == pytest.approx(4 * 4096**3 / 1e15)
