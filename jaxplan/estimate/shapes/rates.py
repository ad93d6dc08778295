"""Rates that runs reach, and the time of a matmul and of a pass over memory at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.facts import Chip, Number

GPU_TILE_ROWS, GPU_TILE_COLUMNS = 128, 256      # of cuBLAS's largest kernels (NVIDIA, Matrix Multiplication Background)
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Rates:
    """Calibrated rates, each a number or an array over runs. Fractions are of the data sheet's figure.

    Attributes:
        matmul, narrow_matmul: of the peak, by large matmuls in 16 bits and in 8 or fewer, at their best.
        sustained: of that, by a whole step: clocks fall where power runs out.
        attention: of the peak, by the forward core of fused attention.
        grouped: of a dense matmul's rate, by grouped matmuls of experts.
        memory: of the memory's rate, by long passes.
        link, network: of the rates inside a domain or torus, and of NICs or DCN.
        exchange: of those, by all-to-alls.
        passes: memory-bound bytes over those that perfect fusion would leave.
        state_overlap: share of the movement of weights and gradients that fits under compute and is hidden by it.
        tensor_overlap, expert_overlap: the same of a layer's activations over tensor ranks and of all-to-alls.
        launch_s: gap between kernels.
        launches: times the kernels of a layer: gaps that waits for the device open again.
        host_s: the host's time to launch one operation, where it is the slower.
        latency: times the latency of links' data.
        fixed_s: per step.
        wave: share of a GPU's wave quantisation that its schedulers do not win back.
        saturation: length of a tile's inner loop that its start and end cost, in elements; narrow_saturation in 8 bits.
        misaligned: rate of matmuls whose rows are not aligned to 16 bytes.
        imbalance: causal attention over context ranks that are not balanced.
        host_link: of the link to the host.
        jitter: standard deviation of a host's step over the step: the slowest of n hosts sets the pace.
        scores: bytes of unfused attention's passes over its scores that reach memory, over all of them.
        tensor_link: of `link`, by tensor ranks' collectives.
        dcn_overlap: as `state_overlap`, of gradients that TPU slices reduce over the data-centre network.
    """

    matmul: Number
    narrow_matmul: Number
    sustained: Number
    attention: Number
    grouped: Number
    memory: Number
    link: Number
    network: Number
    exchange: Number
    passes: Number
    state_overlap: Number
    tensor_overlap: Number
    expert_overlap: Number
    launch_s: Number
    launches: Number
    host_s: Number
    latency: Number
    fixed_s: Number
    wave: Number
    saturation: Number
    narrow_saturation: Number
    misaligned: Number
    imbalance: Number
    host_link: Number
    jitter: Number
    scores: Number
    tensor_link: Number
    dcn_overlap: Number


def whole(value: Number, unit: Number) -> Number:
    """`value` rounded up to whole units."""
    return np.ceil(value / unit) * unit


def padding(chip: Chip, rates: Rates, rows: Number, inner: Number, columns: Number, narrow: Number) -> Number:
    """Executed over useful FLOPs of a [rows, inner] x [inner, columns] matmul.

    TPU: the two dims that lie on the systolic array are padded to its edge. GPU: whole tiles, whole waves of tiles over
    the cores (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization), and the part of
    each tile's inner loop that fills and drains its pipeline.
    """
    array = whole(inner, chip.tile) / inner * whole(columns, chip.tile) / columns
    tiles = np.ceil(rows / GPU_TILE_ROWS) * np.ceil(columns / GPU_TILE_COLUMNS)
    waves = tiles / chip.cores
    quantised = 1 + (np.ceil(waves) / waves - 1) * rates.wave
    loops = (1 / rows + 1 / inner + 1 / columns) / 3
    started = 1 + np.where(narrow > 0, rates.narrow_saturation, rates.saturation) * loops
    tiled = quantised * whole(columns, GPU_TILE_ROWS) / columns * started
    return np.where(chip.tpu > 0, array * started, tiled)


def matmul_s(
    chip: Chip, rates: Rates, rows: Number, inner: Number, columns: Number, narrow: Number, relative: Number = 1.0
) -> Number:
    """Seconds of one matmul: the longer of its FLOPs at the rate that such matmuls reach, and its operands' bytes.

    Args:
        narrow: 1 where the operands have 8 bits or fewer.
        relative: of this kind's rate over a dense matmul's.
    """
    peak = np.where(narrow > 0, chip.narrow_flops_per_s * rates.narrow_matmul, chip.flops_per_s * rates.matmul)
    flops = 2.0 * rows * inner * columns
    busy = flops * padding(chip, rates, rows, inner, columns, narrow) / (peak * rates.sustained * relative)
    moved = rows * inner + inner * columns + rows * columns
    return np.maximum(busy, stream_s(chip, rates, ELEMENT_BYTES * moved))


def stream_s(chip: Chip, rates: Rates, nbytes: Number) -> Number:
    """Seconds to move bytes through the memory."""
    return nbytes / (chip.hbm_bytes_per_s * rates.memory)
