"""What the kernels of a mixture of experts cost, and how their dims are named (`workload.kernels.dispatch`).

Tokens are looked up where they lie and end up where their expert is, or the other way round: a result whose dim
`expert` owns an axis that the operation's batch has is exchanged over it, and so is an operand. The slots of an expert
lie along the sequence as their tokens do: the groups of a row are cut from the sequence.

Legend: B batch, S seq, D embed, E experts, k choices a token, n shards of the experts, G groups of a row, C slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.table import DimIds, Shape

SLOT, EXPERT = "slot", "expert"     # origins of dims, after which they are named


def _groups(recorder: Recorder, seq: DimIds, count: int) -> DimIds:
    """The dim of `count` groups of a row: the major part of its sequence."""
    if count == 1:
        return ()
    parts = recorder.atoms.regroup((seq,), (count, recorder.atoms.elements(recorder.atoms.leaves(seq)) // count))
    return recorder.atoms.sequence(count, "groups") if parts is None else parts[0]


def route(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """scores (B, S, E) -> experts (B, S, k), slots (B, S, k), sources (n, E / n, B, G, C); one FLOP a score."""
    scores = operands[0].shape
    chosen, sources = sizes(equation.outvars[0]), sizes(equation.outvars[2])
    choices = recorder.distinct((*scores[:2], recorder.atoms.sequence(chosen[2], "top_k")))
    shards, local, slots = (
        recorder.atoms.sequence(size, origin)
        for size, origin in ((sources[0], "shards"), (sources[1], "routes"), (sources[4], SLOT))
    )
    taken = recorder.distinct((shards, local, scores[0], _groups(recorder, scores[1], sources[3]), slots))
    results = [
        recorder.add_value(variable.aval, shape)
        for variable, shape in zip(equation.outvars, (choices, choices, taken), strict=True)
    ]
    whole = recorder.distinct((*choices, scores[2]))
    work = float(elements(equation.invars[0]))
    recorder.add_operation(
        equation.params["name"], "reduce", [(operands[0], scores)], results, whole, whole[3:], work
    )
    return results


def _at_experts(recorder: Recorder, variable: Any, x: Shape, sources: Shape) -> Array:
    """A value (E, B, G, C, D) from the shapes of tokens and of sources."""
    expert = recorder.atoms.sequence(sizes(variable)[0], EXPERT)
    return recorder.add_value(variable.aval, recorder.distinct((expert, x[0], sources[3], sources[4], x[2])))


def dispatch_forward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(x (B, S, D), sources) -> (E, B, G, C, D): rows of x by index, looked up where x lies."""
    x, sources = operands[0].shape, operands[1].shape
    result = _at_experts(recorder, equation.outvars[0], x, sources)
    reads = [(operands[0], x), (operands[1], sources)]
    recorder.add_operation(equation.params["name"], "lookup", reads, [result], x)
    return [result]


def dispatch_backward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(gradient (E, B, G, C, D), slots (B, S, k)) -> (B, S, D): each token's k rows added, where the token lies."""
    gradient, slots = operands[0].shape, operands[1].shape
    recorder.unify(slots[:1], gradient[1:2])
    x = recorder.distinct((*slots[:2], gradient[4]))
    result = recorder.add_value(equation.outvars[0].aval, x)
    work = float(elements(equation.outvars[0]) * sizes(equation.invars[1])[2])
    reads = [(operands[0], gradient), (operands[1], slots)]
    recorder.add_operation(equation.params["name"], "lookup", reads, [result], x, (), work)
    return [result]


def combine_forward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(fed (E, B, G, C, D), gates (B, S, k), slots) -> (out (B, S, D), results (n, E / n, B, G, C, D)).

    Each token's k rows, weighted and added where the token lies: 2 k B S D FLOPs. The results, which the gates'
    gradient needs, lie there, too: their dim of experts is no dim that a rule shards.
    """
    fed, gates, slots = (operand.shape for operand in operands)
    recorder.unify(gates[:1], fed[1:2])
    x = recorder.distinct((*gates[:2], fed[4]))
    results = []
    for variable in equation.outvars:
        shape = x
        if len(sizes(variable)) > 3:
            shards, local = (recorder.atoms.sequence(sizes(variable)[i], "routes") for i in (0, 1))
            shape = recorder.distinct((shards, local, *fed[1:]))
        results.append(recorder.add_value(variable.aval, shape))
    rows, width = sizes(equation.invars[1]), sizes(equation.invars[0])[4]
    work = 2.0 * rows[0] * rows[1] * rows[2] * width
    reads = [(operands[1], gates), (operands[0], fed), (operands[2], slots)]
    recorder.add_operation(equation.params["name"], "lookup", reads, results, x, (), work)
    return results


def combine_backward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(gates, results, dout (B, S, D), slots, sources) -> (dfed (E, B, G, C, D), dgates (B, S, k)).

    Two passes where the tokens lie: k products of rows for the gates, 2 k B S D FLOPs, and rows by index, weighted.
    """
    gates, results, gradient, slots, sources = (operand.shape for operand in operands)
    recorder.unify(gradient[:2], gates[:2])
    name, work = equation.params["name"], 2.0 * elements(equation.invars[2]) * sizes(equation.invars[0])[2]
    d_fed = _at_experts(recorder, equation.outvars[0], gradient, sources)
    d_gates = recorder.add_value(equation.outvars[1].aval, gates)
    whole = recorder.distinct((*gates, gradient[2]))
    reads = [(operands[1], results), (operands[2], gradient), (operands[3], slots)]
    recorder.add_operation(name, "lookup", reads, [d_gates], whole, whole[3:], work)
    reads = [(operands[2], gradient), (operands[0], gates), (operands[4], sources)]
    recorder.add_operation(name, "move", reads, [d_fed], gradient)
    return [d_fed, d_gates]
