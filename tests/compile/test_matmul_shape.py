"""Shapes of matmuls, and how tiles, waves and arrays are filled: closed forms by hand."""

import hlo_fixtures as fixtures
import pytest

from jaxplan.compile.hlo_cost import FlopCounter
from jaxplan.compile.matmul_shape import MatmulShape, gpu_padding, shape_of, tpu_padding

DOTS = {
    "plain": ("bf16[96,40]", "bf16[96,640]", "bf16[640,40]", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    "batched": (
        "bf16[8,96,40]",
        "bf16[8,96,640]",
        "bf16[8,640,40]",
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
    ),
    "transposed": ("bf16[96,40]", "bf16[640,96]", "bf16[40,640]", "lhs_contracting_dims={0}, rhs_contracting_dims={1}"),
}


@pytest.mark.parametrize("name", DOTS)
def test_the_shape_of_a_dot_however_its_dims_lie(name):
    result, left, right, dims = DOTS[name]
    module = fixtures.program(
        f"%a = {left} parameter(0)\n%b = {right} parameter(1)\nROOT %d = {result} dot(%a, %b), {dims}"
    )
    dot = module.entry.instructions[-1]
    count = FlopCounter(module).of_instruction(dot)
    assert count is not None
    batch = 8 if name == "batched" else 1
    assert shape_of(dot, count.total) == MatmulShape(batch, 96, 640, 40)
    assert MatmulShape(batch, 96, 640, 40).flops == count.total
    assert shape_of(dot, 0.0) is None


@pytest.mark.parametrize(
    "rows, columns, inner, expected",
    [
        (128 * 132, 256, 4096, 1.0),                    # one wave of 132 tiles
        (128 * 133, 256, 4096, 2 * 132 / 133),          # one tile more is a wave more
        (128 * 132, 255, 4096, 256 / 255),              # the last column of every tile is padding
        (128 * 66, 256, 4096, 1.0),                     # half a wave: the inner loop is split in two
        (128 * 66, 256, 128, 2.0),                      # too short to be split
    ],
)
def test_tiles_and_waves_of_gpus(rows, columns, inner, expected):
    assert gpu_padding(MatmulShape(1, rows, inner, columns), 132) == pytest.approx(expected, rel=1e-9)
    assert gpu_padding(MatmulShape(1, columns, inner, rows), 132) == pytest.approx(expected, rel=1e-9)  # the other tile
    assert gpu_padding(MatmulShape(1, rows, inner, columns), 0) == 1.0


def test_what_schedulers_win_back_of_the_last_wave():
    """133 tiles on 132 cores are two waves of which half is idle: of the 131 tiles' worth, so much stays."""
    shape = MatmulShape(1, 128 * 133, 4096, 256)
    assert gpu_padding(shape, 132, 0.5) == pytest.approx(1 + 0.5 * 131 / 133, rel=1e-9)
    assert gpu_padding(shape, 132, 0.0) == 1.0


def test_filling_and_draining_costs_part_of_each_loop():
    """300 elements of each of three loops of 1000, 2000 and 4000: their mean of 0.3, 0.15 and 0.075."""
    assert MatmulShape(1, 1000, 2000, 4000).started(300.0) == pytest.approx(1 + (0.3 + 0.15 + 0.075) / 3, rel=1e-12)
    assert MatmulShape(1, 1000, 2000, 4000).started(0.0) == 1.0


@pytest.mark.parametrize(
    "dims, expected",
    [((4096, 512, 1024), 1.0), ((4096, 64, 1024), 2.0), ((1000, 64, 128), 2 * 1024 / 1000), ((64, 64, 4096), 4.0)],
)
def test_arrays_of_tpus(dims, expected):
    """Of three dims the one that is padded least streams through an array of 128 x 128."""
    assert tpu_padding(MatmulShape(1, *dims), 128) == pytest.approx(expected, rel=1e-9)
