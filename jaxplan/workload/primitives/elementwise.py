"""Elementwise primitives: a whitelist, so that an unknown primitive of matching shapes is never taken for one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.primitives.registry import rule

# fmt: off
ARITHMETIC = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil", "clamp", "clz", "complex", "conj",
    "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag",
    "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "log2", "logistic", "lt", "lt_to",
    "max", "min", "mul", "mulhi", "ne", "neg", "nextafter", "not", "one_minus_square", "or", "polygamma",
    "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta",
)
# fmt: on
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


def _broadcasts(operand: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Scalars, and equal ranks with every size 1 or the result's: primitives broadcast size 1 silently."""
    if math.prod(operand) == 1:
        return True
    return len(operand) == len(result) and all(x in (1, y) for x, y in zip(operand, result, strict=True))


@rule(*ARITHMETIC, *CUMULATIVE)
def elementwise(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """All operands and results have the same dims. One FLOP an element; a change of dtype is no FLOP."""
    atoms, name = recorder.atoms, equation.primitive.name
    out_sizes = sizes(equation.outvars[0])
    if not all(_broadcasts(sizes(variable), out_sizes) for variable in equation.invars):
        return recorder.uncover(name, equation.outvars, operands)
    if name == "convert_element_type" and equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype:
        return [operands[0]]
    arrays = [
        array
        for array, variable in zip(operands, equation.invars, strict=True)
        if len(sizes(variable)) == len(out_sizes) and (elements(variable) != 1 or not out_sizes)
    ]
    out = tuple(
        next((array.shape[i] for array in arrays if array.shape[i]), ()) or atoms.sequence(size, "broadcast")
        for i, size in enumerate(out_sizes)
    )
    for array in arrays:
        if not recorder.unify(out, array.shape):
            out = tuple(
                atoms.agree(mine, theirs) if mine and theirs else mine
                for mine, theirs in zip(out, array.shape, strict=True)
            )
    out = atoms.distinct(out)[0]
    results = [recorder.add_value(variable.aval, out) for variable in equation.outvars]
    reads = [
        (array, tuple(mine if theirs else () for mine, theirs in zip(out, array.shape, strict=True)))
        for array in arrays
    ]
    flops = 0.0 if name == "convert_element_type" else float(elements(equation.outvars[0]))
    recorder.add_operation(name, "elementwise", reads, results, out, (), flops)
    return results


@rule("iota", "rng_bit_generator", "threefry2x32", "random_seed", "random_wrap", "random_unwrap", "random_bits")
@rule("random_fold_in", "random_split", "random_clone", "create_token", "axis_index")
def source(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Numbers out of nothing: their dims are learned from whoever reads them."""
    results = [recorder.fresh(variable.aval, equation.primitive.name) for variable in equation.outvars]
    for result in results:
        recorder.add_operation(equation.primitive.name, "move", [], [result], result.shape)
    return results
