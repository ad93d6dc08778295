"""How well a matmul's shape fits the units that compute it: executed over useful work.

GPU: whole tiles in whole waves over the cores (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
quantization). TPU: dims padded to the edge of a systolic array. Both: the time in which a pipeline or an array fills
and drains (`estimate.shapes.rates.padding` prices published runs alike).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxplan.compile.hlo import Instruction

TILES = ((128, 256), (256, 128))    # of cuBLAS's most efficient kernels (the same guide, section 3)
SPLIT = 128                         # elements of the contracted dim that one of several cores takes, at least


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """[batch, rows, inner] x [batch, inner, columns]."""

    batch: float
    rows: float
    inner: float
    columns: float

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.inner * self.columns

    def started(self, saturation: float) -> float:
        """Time with filling and draining over time without, where that costs so many elements of a loop.

        Whichever dim is the inner loop: the mean over the three.
        """
        return 1 + saturation * (1 / self.rows + 1 / self.inner + 1 / self.columns) / 3


def shape_of(matmul: Instruction, flops: float) -> MatmulShape | None:
    """The shape of a dot, a convolution or a library's matmul of so many FLOPs; None where it computes nothing.

    With a = b m k, c = b k n and r = b m n elements, f / 2 = b m k n gives n = f / 2a, m = f / 2c, k = f / 2r, however
    the dims are labelled.
    """
    if flops <= 0:
        return None
    left, right = (matmul.operand(i).shape.elements for i in (0, 1))
    result = matmul.shape.elements
    columns, rows, inner = (max(1.0, flops / 2 / elements) for elements in (left, right, result))
    return MatmulShape(max(1.0, result / (rows * columns)), rows, inner, columns)


def gpu_padding(shape: MatmulShape, cores: int, wave_share: float = 1.0) -> float:
    """Executed over useful work on so many cores: the better of both tiles; 1 where the cores are not known.

    Args:
        wave_share: of the cores' idle time in the last wave, what kernels do not win back.
    """
    return min(_waves(shape, *tile, cores, wave_share) for tile in TILES) if cores else 1.0


def _waves(shape: MatmulShape, tile_rows: int, tile_columns: int, cores: int, wave_share: float) -> float:
    down, across = math.ceil(shape.rows / tile_rows), math.ceil(shape.columns / tile_columns)
    padded = down * tile_rows / shape.rows * across * tile_columns / shape.columns
    tiles = shape.batch * down * across
    if tiles < cores:       # the contracted dim is split so that more cores have work
        tiles *= max(1, min(cores // math.ceil(tiles), int(shape.inner // SPLIT)))
    waves = tiles / cores
    return padded * (1 + wave_share * (math.ceil(waves) / waves - 1))


def tpu_padding(shape: MatmulShape, edge: int) -> float:
    """Executed over useful work on arrays of that edge: of three dims one streams, the two others fill the array."""
    if not edge:
        return 1.0
    return math.prod(sorted(math.ceil(dim / edge) * edge / dim for dim in (shape.rows, shape.inner, shape.columns))[1:])
