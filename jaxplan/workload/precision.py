"""Precisions by name: the dtypes of a workload. No JAX here."""

from __future__ import annotations

from collections.abc import Mapping

from jaxplan.errors import InputError

FP8 = "float8_e4m3fn"       # operands of the layers' matmuls; Micikevicius et al. 2022, arXiv:2209.05433, section 3

#: Dtype of the stored parameters (and of the optimizer's state, which takes after them), of activations and weights as
#: they are computed with, and of the operands of the layers' matmuls where it is another.
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"parameter_dtype": "float32", "compute_dtype": "bfloat16"},
    "bf16-pure": {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"},
    "f32": {"parameter_dtype": "float32", "compute_dtype": "float32"},
    "fp8": {"parameter_dtype": "float32", "compute_dtype": "bfloat16", "matmul_dtype": FP8},
}


def precision(name: str) -> Mapping[str, str]:
    """The fields of a `Workload` that make a precision.

    `fp8` is priced, not executed: the decoder's program computes in bfloat16.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PRECISIONS:
        raise InputError(f"precision {name!r}", f"one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
