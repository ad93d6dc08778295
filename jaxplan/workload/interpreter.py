"""Walks a jaxpr and labels every array with atoms: calls are entered, loops are walked once.

What differs between the supported JAX versions (where a scan keeps its counts, closed or open inner jaxprs) is read
here and in `scan_counts` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxplan.workload.kernel_rules import KERNEL_PREFIX, kernel
from jaxplan.workload.labels import Array, Recorder
from jaxplan.workload.primitives import RULES

CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "linear_call", "composite", "remat", "remat2", "checkpoint"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "custom_vmap_call"}
)
LAYERS, LOOP = "layers", "loop"


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr inside a closed one; an open one as it is (jax 0.12 has open ones in parameters)."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def inner_jaxpr(equation: Any) -> Any | None:
    """The jaxpr that a call equation runs, as the equation holds it; None where there is none."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        jaxpr = equation.params.get(key)
        if jaxpr is not None and hasattr(open_jaxpr(jaxpr), "eqns"):
            return jaxpr
    return None


def scan_counts(params: Any) -> tuple[int, int]:
    """(constants, carries) of a scan; jax 0.12 keeps them as the tree of its inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carries = list(params["ft_in"].unpack())[:2]
    return len(list(constants)), len(list(carries))


def is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def walk(recorder: Recorder, jaxpr: Any, operands: Sequence[Array]) -> list[Array]:
    """Label the results of an open jaxpr from its inputs' labels."""
    known: dict[Any, Array] = dict(zip(jaxpr.invars, operands, strict=True))
    for variable in jaxpr.constvars:
        known[variable] = recorder.fresh(variable.aval, "constant")

    def read(variable: Any) -> Array:
        if is_literal(variable):
            return Array(recorder.atoms.fresh(getattr(variable.aval, "shape", ()), "literal"))
        return known[variable]

    outside = recorder.place
    for number, equation in enumerate(jaxpr.eqns):
        place = outside.inside(str(equation.source_info.name_stack))
        recorder.place = replace(place, path=(*outside.path, number))
        results = step(recorder, equation, [read(variable) for variable in equation.invars])
        recorder.outputs[recorder.place.path] = [array.shape for array in results]
        known.update(zip(equation.outvars, results, strict=True))
    recorder.place = outside
    return [read(variable) for variable in jaxpr.outvars]


def step(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Label one equation's results."""
    name = equation.primitive.name
    if name in CONTROL:
        return CONTROL[name](recorder, equation, operands)
    if name in CALLS:
        return call(recorder, equation, operands)
    if name in RULES:
        return RULES[name](recorder, equation, operands)
    return recorder.uncover(name, equation.outvars, operands)


def call(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """A call is its body; a kernel of ours is priced as declared and not entered."""
    name = equation.params.get("name", "")
    if isinstance(name, str) and name.startswith(KERNEL_PREFIX):
        return kernel(recorder, name, equation, operands)
    jaxpr = inner_jaxpr(equation)
    if jaxpr is None or len(open_jaxpr(jaxpr).invars) != len(operands):
        return recorder.uncover(equation.primitive.name, equation.outvars, operands)
    return walk(recorder, open_jaxpr(jaxpr), operands)


def scan(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """A loop: one walk of its body, as many times as it runs; what it stacks is one value per iteration.

    A loop whose stacked inputs are parameters (or what such a loop stacked) is a loop over layers.
    """
    atoms, length = recorder.atoms, equation.params["length"]
    constants, carries = scan_counts(equation.params)
    body = open_jaxpr(equation.params["jaxpr"])
    stacked = operands[constants + carries :]
    over_layers = any(_is_layered(recorder, array) for array in stacked)
    scope = LAYERS if over_layers else LOOP
    trips = atoms.sequence(length, scope)
    for array in stacked:
        recorder.unify((trips,), array.shape[:1])

    outside = recorder.place
    with recorder.at(replace(outside, times=outside.times * length, scope=(*outside.scope, scope))):
        carried = [
            recorder.add_value(variable.aval, atoms.distinct(array.shape)[0])
            for variable, array in zip(body.invars[constants:], operands[constants : constants + carries], strict=False)
        ]
        slices = [
            _slice(recorder, variable, array)
            for variable, array in zip(body.invars[constants + carries :], stacked, strict=True)
        ]
        results = walk(recorder, body, [*operands[:constants], *carried, *slices])
    for before, after in zip(carried, results[:carries], strict=True):
        recorder.unify(before.shape, after.shape)
    _keep(recorder, [*operands[constants:], *results])

    out = [
        recorder.add_value(variable.aval, array.shape)
        for variable, array in zip(equation.outvars, carried, strict=False)
    ]
    for variable, array in zip(equation.outvars[carries:], results[carries:], strict=True):
        whole = recorder.add_value(variable.aval, atoms.distinct((trips, *array.shape))[0])
        if array.value is not None and whole.value is not None:
            recorder.slices[whole.value] = array.value
            if over_layers:
                recorder.layered.add(whole.value)
        out.append(whole)
    return out


def _keep(recorder: Recorder, arrays: Sequence[Array]) -> None:
    """What enters or leaves a loop under another value's number is needed, though no operation is seen to read it."""
    recorder.roots.update(array.value for array in arrays if array.value is not None)


def _is_layered(recorder: Recorder, array: Array) -> bool:
    if array.value is None:
        return False
    return array.value in recorder.layered or recorder.values[array.value].kind == "parameter"


def _slice(recorder: Recorder, variable: Any, array: Array) -> Array:
    """One iteration's part of a stacked value: the same value wherever it is sliced."""
    shape = array.shape[1:]
    if array.value is None:
        return Array(shape)
    if array.value not in recorder.slices:
        whole = recorder.values[array.value]
        part = recorder.add_value(
            variable.aval, shape, kind=whole.kind, path=whole.path, tag=whole.tag, phase=whole.phase
        )
        recorder.slices[array.value] = part.value if part.value is not None else -1
    return Array(shape, recorder.slices[array.value])


def while_loop(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """A loop of unknown trip count: its body is counted once, and the loop is uncovered."""
    params = equation.params
    skipped, constants = params["cond_nconsts"], params["body_nconsts"]
    recorder.uncovered["while (trip count unknown)"] += 1
    place = recorder.place
    with recorder.at(replace(place, scope=(*place.scope, LOOP))):
        results = walk(recorder, open_jaxpr(params["body_jaxpr"]), operands[skipped:])
    carried = operands[skipped + constants :]
    _keep(recorder, [*carried, *results])
    for before, after in zip(carried, results, strict=True):
        recorder.unify(before.shape, after.shape)
    return [
        recorder.add_value(variable.aval, array.shape)
        for variable, array in zip(equation.outvars, carried, strict=True)
    ]


def cond(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """One of several branches: all give names, the one with the most work is priced."""
    start = len(recorder.operations)
    found = []
    for number, branch in enumerate(equation.params["branches"]):
        place = recorder.place
        with recorder.at(replace(place, path=(*place.path, number))):
            results = walk(recorder, open_jaxpr(branch), operands[1:])
        found.append((recorder.operations[start:], results))
        del recorder.operations[start:]
    first = found[0][1]
    for _, results in found[1:]:
        for mine, theirs in zip(first, results, strict=True):
            recorder.unify(mine.shape, theirs.shape)
    operations, results = max(found, key=lambda branch: sum(op.flops * op.times for op in branch[0]))
    recorder.operations.extend(operations)
    return results


CONTROL: dict[str, Callable[[Recorder, Any, Sequence[Array]], list[Array]]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
}
