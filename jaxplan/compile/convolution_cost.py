"""FLOPs of convolutions, and of the matmuls that a TPU writes as convolutions."""

from __future__ import annotations

import re

import numpy as np

from jaxplan.compile.hlo import HloError, Instruction

_LABELS = re.compile(r"dim_labels=([^_\s]+)_([^-\s]+)->([^,\s]+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
# Where a library call keeps the three tensors of the forward convolution that its labels and window describe.
_OUTPUT = -1
_PLACES = {
    "__cudnn$convForward": (0, 1, _OUTPUT),
    "__cudnn$convBiasActivationForward": (0, 1, _OUTPUT),
    "__cudnn$convBackwardInput": (_OUTPUT, 1, 0),
    "__cudnn$convBackwardFilter": (0, _OUTPUT, 1),
}


def convolution_flops(convolution: Instruction) -> float:
    """2 x batch x output features x input features of a group x pairs of positions that meet.

    A TPU writes matmuls as convolutions whose windows lie partly on padding: only pairs that touch
    input are work.

    Args:
        convolution: a `convolution`, or a cuDNN call for which `is_convolution` holds.
    """
    labels = _LABELS.search(convolution.structure)
    if labels is None:
        raise HloError(f"{convolution.name} ({convolution.opcode}) has no dim_labels")
    left, right, result = labels[1], labels[2], labels[3]
    places = _PLACES.get(convolution.custom_call_target, (0, 1, _OUTPUT))
    image, kernel, out = (
        convolution.shape.dims if place == _OUTPUT else convolution.operand(place).shape.dims
        for place in places
    )
    window = _window(convolution, sum(label.isdigit() for label in left))
    pairs = 1
    for dim, (stride, low, image_dilation, kernel_dilation) in enumerate(window):
        name = str(dim)
        sizes = (image[left.index(name)], kernel[right.index(name)], out[result.index(name)])
        pairs *= _pairs(*sizes, stride, low, image_dilation, kernel_dilation)
    batch = image[left.index("b")] // int(convolution.attribute("batch_group_count") or 1)
    # The kernel's input features are already those of one feature group.
    return 2.0 * pairs * batch * kernel[right.index("o")] * kernel[right.index("i")]


def is_convolution(target: str) -> bool:
    """Whether a custom call of that target is a convolution of a library."""
    return target in _PLACES


def _window(convolution: Instruction, dims: int) -> list[tuple[int, int, int, int]]:
    """(stride, low padding, image dilation, kernel dilation) of each spatial dim."""
    match = _WINDOW.search(convolution.structure)
    given = dict(part.split("=") for part in match[1].split()) if match else {}

    def values(key: str, default: str) -> list[str]:
        return given[key].split("x") if key in given else [default] * dims

    low = [int(pad.split("_")[0]) for pad in values("pad", "0_0")]
    strides, image, kernel = (
        [int(value) for value in values(key, "1")] for key in ("stride", "lhs_dilate", "rhs_dilate")
    )
    return list(zip(strides, low, image, kernel, strict=True))


def _pairs(
    image: int, kernel: int, out: int, stride: int, low: int, image_dilation: int, kernel_dilation: int
) -> int:
    """Pairs of output and kernel positions whose input position exists, in one spatial dim."""
    last = (image - 1) * image_dilation
    offsets = np.arange(kernel) * kernel_dilation - low
    if image_dilation == 1:
        first_out = np.maximum(0, -(offsets // stride))
        last_out = np.minimum(out - 1, (last - offsets) // stride)
        return int(np.maximum(0, last_out - first_out + 1).sum())
    places = np.arange(out)[:, None] * stride + offsets
    return int(((places >= 0) & (places <= last) & (places % image_dilation == 0)).sum())
