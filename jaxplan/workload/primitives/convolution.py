"""Convolutions, their strided forms and both of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxplan.workload.labels import Array, Recorder, sizes
from jaxplan.workload.primitives.registry import rule
from jaxplan.workload.table import DimIds


@rule("conv_general_dilated")
def conv_general_dilated(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """FLOPs: 2 x batch x channels in and out x pairs of a result position and a kernel position that meet an element.

    What falls on padding, or between the elements of a dilated image (a strided convolution's gradient), is no work.
    A spatial dim that keeps its size keeps its atom; a strided one gets a new atom that remembers where it came from.
    """
    params, atoms = equation.params, recorder.atoms
    numbers = params["dimension_numbers"]
    image, kernel = operands[0].shape, operands[1].shape
    image_spec, kernel_spec, out_spec = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    out_sizes = sizes(equation.outvars[0])
    out: list[DimIds] = [()] * len(out_sizes)
    grouped_batch = params["batch_group_count"]
    batch = image[image_spec[0]]
    out[out_spec[0]] = batch if grouped_batch == 1 else atoms.sequence(out_sizes[out_spec[0]], "conv")
    out[out_spec[1]] = kernel[kernel_spec[0]]
    if params["feature_group_count"] * grouped_batch == 1:
        recorder.unify((image[image_spec[1]],), (kernel[kernel_spec[1]],))
    contracted = [kernel[kernel_spec[1]]]
    for i, k, o in zip(image_spec[2:], kernel_spec[2:], out_spec[2:], strict=True):
        out[o] = _spatial(recorder, equation, operands, (i, k, o))
        contracted.append(kernel[k])
    whole = recorder.distinct((*out, *contracted))
    result = recorder.add_value(equation.outvars[0].aval, whole[: len(out)])
    recorder.add_operation(
        "conv_general_dilated",
        "matmul",
        [(operands[0], image), (operands[1], kernel)],
        [result],
        whole,
        whole[len(out) :],
        _flops(equation),
    )
    return [result]


def _spatial(recorder: Recorder, equation: Any, operands: Sequence[Array], at: tuple[int, int, int]) -> DimIds:
    """The atoms of one spatial dim of the result; `at` is its place in image, kernel and result."""
    i, k, o = at
    atoms = recorder.atoms
    image_size = sizes(equation.invars[0])[i]
    kernel_size, out_size = sizes(equation.invars[1])[k], sizes(equation.outvars[0])[o]
    image, kernel = operands[0].shape[i], operands[1].shape[k]
    if kernel_size > out_size:  # the kernel's gradient: the window is the whole image
        if kernel_size == image_size and kernel:
            recorder.unify((image,), (kernel,))
        return atoms.sequence(out_size, "kernel")
    if out_size == image_size:
        return image
    strided = atoms.sequence(out_size, "spatial")
    if strided and image:
        recorder.parts[strided[0]] = image
    return strided


def _flops(equation: Any) -> float:
    params = equation.params
    numbers = params["dimension_numbers"]
    image, kernel, out = (sizes(v) for v in (*equation.invars[:2], equation.outvars[0]))
    pairs = math.prod(
        _meetings(image[i], kernel[k], out[o], stride, padding[0], dilation, kernel_dilation)
        for i, k, o, stride, padding, dilation, kernel_dilation in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    )
    batch, channels = (out[o] for o in numbers.out_spec[:2])
    return 2.0 * batch * channels * kernel[numbers.rhs_spec[1]] * pairs


def _meetings(image: int, kernel: int, out: int, stride: int, low: int, dilation: int, kernel_dilation: int) -> int:
    """Pairs of a result position and a kernel position along one spatial dim that meet an element of the image."""
    at = np.arange(out)[:, None] * stride + np.arange(kernel) * kernel_dilation - low
    return int(((at >= 0) & (at <= (image - 1) * dilation) & (at % dilation == 0)).sum())
