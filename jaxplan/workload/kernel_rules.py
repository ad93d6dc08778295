"""What the reference decoder's kernels cost, and how their dims are named.

A kernel is a `jax.jit` whose name starts with `jaxplan_`: attention, the embedding lookup, and the fused unembedding
and cross-entropy, each forward and backward. It is one operation (the loss: a few) of known work, whatever code runs
inside it on which machine, so its body is not entered.

Legend: B batch, S seq, D embed, V vocab, N heads, K kv_heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxplan.workload import dropless_rules, expert_rules
from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.table import DimIds, Shape

KERNEL_PREFIX = "jaxplan_"
CHUNK = ("chunk",)

Kernel = Callable[[Recorder, Any, Sequence[Array]], list[Array]]


def kernel(recorder: Recorder, name: str, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """Price a kernel by its name; one that is unknown, or that lacks operands or results, is uncovered.

    Partial evaluation moves the constants of a body out of it: into a call without operands, whose results become
    further operands of the real one.
    """
    if not operands:
        return [recorder.fresh(variable.aval, "constant") for variable in equation.outvars]
    entry = KERNELS.get(name)
    if entry is None or len(operands) < entry[1] or len(equation.outvars) not in entry[2]:
        return recorder.uncover(name, equation.outvars, operands)
    return entry[0](recorder, equation, operands[: entry[1]])


def _attention_dims(recorder: Recorder, operands: Sequence[Array]) -> tuple[list[Shape], Shape, DimIds]:
    """Query, key and value as read, all dims of the operation, and the sequence dim of the keys."""
    atoms = recorder.atoms
    query, key, value = (operand.shape for operand in operands[:3])
    recorder.unify(key, value)
    recorder.unify((query[0], query[3]), (key[0], key[3]))
    recorder.unify((query[1],), (key[1],))
    head_count, kv_count = atoms.elements(atoms.flat((query[2],))), atoms.elements(atoms.flat((key[2],)))
    grouped = atoms.regroup((query[2],), (kv_count, head_count // kv_count))
    if grouped is not None:
        recorder.unify((grouped[0],), (key[2],))
    query, key = atoms.resolve(query), atoms.resolve(key)
    keys_seq = tuple(atoms.copy(atom, atoms.flat(query)) for atom in key[1])
    whole = atoms.distinct((query[0], query[2], query[1], keys_seq, query[3]))[0]
    as_key = (whole[0], keys_seq, key[2], whole[4])
    return [query, as_key, as_key], whole, keys_seq


def attention_forward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(query, key, value) -> (out, logsumexp). Causal: half of two matmuls, 2 x 2 B N S S H / 2 FLOPs.

    Convention of Dao 2023 (FlashAttention-2, arXiv:2307.08691, section 4.1): divide by 2 for the causal mask.
    """
    reads, whole, keys_seq = _attention_dims(recorder, operands)
    results = []
    for variable in equation.outvars:
        rows = (whole[0], whole[2], whole[1], whole[4]) if len(sizes(variable)) == 4 else (whole[0], whole[1], whole[2])
        results.append(recorder.add_value(variable.aval, rows))
    flops = 2 * 2.0 * elements(equation.invars[0]) * sizes(equation.invars[1])[1] / 2
    recorder.add_operation(
        equation.params["name"],
        "attention",
        list(zip(operands, reads, strict=True)),
        results,
        whole,
        (keys_seq,),
        flops,
    )
    return results


def attention_backward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(query, key, value, out, logsumexp, dout) -> (dquery, dkey, dvalue): 5 matmuls, 2.5 times forward.

    Scores again, then the gradients of values, probabilities, queries and keys (arXiv:2307.08691, section 2.3).
    """
    reads, whole, _ = _attention_dims(recorder, operands)
    recorder.unify(operands[5].shape, operands[0].shape)
    reads += [reads[0], (whole[0], whole[1], whole[2]), reads[0]]
    results = [
        recorder.add_value(variable.aval, recorder.atoms.resolve(operand.shape))
        for variable, operand in zip(equation.outvars, operands, strict=False)
    ]
    flops = 5 * 2.0 * elements(equation.invars[0]) * sizes(equation.invars[1])[1] / 2
    recorder.add_operation(
        equation.params["name"],
        "attention",
        list(zip(operands, reads, strict=True)),
        results,
        whole,
        (),
        flops,
    )
    return results


def embed_forward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(table (V, D), ids (B, S)) -> (B, S, D): rows by index."""
    table, ids = operands[0].shape, operands[1].shape
    whole = recorder.distinct((*ids, table[1], table[0]))
    result = recorder.add_value(equation.outvars[0].aval, whole[:3])
    reads = [(operands[0], table), (operands[1], ids)]
    recorder.add_operation(equation.params["name"], "lookup", reads, [result], whole, whole[3:])
    return [result]


def embed_backward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(ids (B, S), dx (B, S, D)) -> dtable (V, D): every token's gradient added to its row; one FLOP an element."""
    ids, gradient = operands[0].shape, operands[1].shape
    recorder.unify(gradient[:2], ids)
    rows = recorder.atoms.sequence(sizes(equation.outvars[0])[0], "rows")
    whole = recorder.distinct((*gradient, rows))
    result = recorder.add_value(equation.outvars[0].aval, (whole[3], whole[2]))
    reads = [(operands[0], ids), (operands[1], gradient)]
    flops = float(elements(equation.invars[1]))
    recorder.add_operation(equation.params["name"], "lookup", reads, [result], whole, whole[:2], flops)
    return [result]


def _loss_dims(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> tuple[Shape, Shape, Shape]:
    """x as (B, S, D), the unembedding's dims in its own order, and (B, S, D, V).

    The unembedding is (D, V), or (V, D) where it is the tied embedding table.
    """
    atoms = recorder.atoms
    x, weight = operands[0].shape, operands[1].shape
    embed = atoms.leaves(x[2])
    tied = atoms.leaves(weight[1]) == embed and atoms.leaves(weight[0]) != embed
    if atoms.leaves(weight[0]) != embed and not tied:  # nothing known yet: by size, (D, V) where both fit
        tied = sizes(equation.invars[1])[0] != sizes(equation.invars[0])[2]
    recorder.unify((x[2],), (weight[1 if tied else 0],))
    recorder.unify(x[:2], operands[2].shape)
    whole = recorder.distinct((*x, weight[0 if tied else 1]))
    return whole[:3], ((whole[3], whole[2]) if tied else (whole[2], whole[3])), whole


def _logits(recorder: Recorder, shape: Shape) -> Array:
    """The float32 logits inside the kernel: whole here, one chunk at a time in the program."""
    return recorder.add_value(np.float32(0), shape)


def _cast(recorder: Recorder, operand: Array, shape: Shape, to: Any) -> Array:
    """A value in another dtype, as the kernel casts it before and after it travels."""
    result = recorder.add_value(to, shape)
    recorder.add_operation("convert_element_type", "elementwise", [(operand, shape)], [result], shape, scope=CHUNK)
    return result


def _product(recorder: Recorder, name: str, reads: list, out: Array, whole: Shape, gone: Shape) -> None:
    """One matmul of the loss kernel: 2 B S D V FLOPs."""
    flops = 2.0 * recorder.atoms.elements(recorder.atoms.flat(whole))
    recorder.add_operation(name, "matmul", reads, [out], whole, gone, flops, CHUNK)


def loss_forward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(x (B, S, D), unembedding, targets (B, S)) -> (summed loss, logsumexp (B, S)): 2 B S D V FLOPs, a reduction."""
    x, weight, whole = _loss_dims(recorder, equation, operands)
    tokens, logits_shape = whole[:2], (*whole[:2], whole[3])
    name = equation.params["name"]
    logits = _logits(recorder, logits_shape)
    cast = _cast(recorder, operands[1], weight, equation.invars[0].aval)
    _product(recorder, name, [(operands[0], x), (cast, weight)], logits, whole, (whole[2],))
    work = float(recorder.atoms.elements(recorder.atoms.flat(logits_shape)))
    results = []
    for variable in equation.outvars:
        shape = tokens if len(sizes(variable)) == 2 else ()
        result = recorder.add_value(variable.aval, shape)
        reads = [(logits, logits_shape), (operands[2], tokens)]
        gone = logits_shape if not shape else logits_shape[2:]
        recorder.add_operation(name, "reduce", reads, [result], logits_shape, gone, work, CHUNK)
        results.append(result)
    return results


def loss_backward(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """(x, unembedding, targets, logsumexp, dloss) -> (dx, dw): logits again, dx and dw, 3 x 2 B S D V FLOPs.

    The gradient of x is added up in float32 over the chunks; that of the weight travels in x's dtype.
    """
    x, weight, whole = _loss_dims(recorder, equation, operands)
    tokens, logits_shape = whole[:2], (*whole[:2], whole[3])
    name, compute = equation.params["name"], equation.invars[0].aval
    logits, gradient = _logits(recorder, logits_shape), recorder.add_value(compute, logits_shape)
    cast = _cast(recorder, operands[1], weight, compute)
    _product(recorder, name, [(operands[0], x), (cast, weight)], logits, whole, (whole[2],))
    work = float(recorder.atoms.elements(recorder.atoms.flat(logits_shape)))
    reads = [(logits, logits_shape), (operands[2], tokens), (operands[3], tokens)]
    recorder.add_operation(name, "elementwise", reads, [gradient], logits_shape, (), work, CHUNK)
    results = []
    for variable in equation.outvars:
        if len(sizes(variable)) == 3:
            summed, shape = recorder.add_value(np.float32(0), x), x
            reads = [(gradient, logits_shape), (cast, weight)]
            _product(recorder, name, reads, summed, whole, (whole[3],))
        else:
            summed, shape = recorder.add_value(compute, weight), weight
            reads = [(gradient, logits_shape), (operands[0], x)]
            _product(recorder, name, reads, summed, whole, tokens)
        results.append(_cast(recorder, summed, shape, variable.aval))
    return results


def zigzag(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """A sequence, of token ids or of a table of positions, in another order: the same dims."""
    shape = operands[0].shape
    result = recorder.add_value(equation.outvars[0].aval, shape)
    recorder.add_operation(equation.params["name"], "move", [(operands[0], shape)], [result], shape)
    return [result]


# name -> rule, operands, how many results may be left by dead-code elimination
KERNELS: dict[str, tuple[Kernel, int, tuple[int, ...]]] = {
    "jaxplan_attention_forward": (attention_forward, 3, (1, 2)),
    "jaxplan_attention_backward": (attention_backward, 6, (3,)),
    "jaxplan_embed_forward": (embed_forward, 2, (1,)),
    "jaxplan_embed_backward": (embed_backward, 2, (1,)),
    "jaxplan_loss_forward": (loss_forward, 3, (1, 2)),
    "jaxplan_loss_backward": (loss_backward, 5, (1, 2)),
    "jaxplan_zigzag": (zigzag, 1, (1,)),
    "jaxplan_route": (expert_rules.route, 1, (3,)),
    "jaxplan_dispatch_forward": (expert_rules.dispatch_forward, 2, (1,)),
    "jaxplan_dispatch_backward": (expert_rules.dispatch_backward, 2, (1,)),
    "jaxplan_combine_forward": (expert_rules.combine_forward, 3, (1, 2)),
    "jaxplan_combine_backward": (expert_rules.combine_backward, 5, (2,)),
    "jaxplan_choose": (dropless_rules.choose, 1, (1,)),
    "jaxplan_experts_forward": (partial(dropless_rules.forward, matrices=2), 5, (1,)),
    "jaxplan_experts_backward": (partial(dropless_rules.backward, matrices=2), 6, (4,)),
    "jaxplan_gated_experts_forward": (partial(dropless_rules.forward, matrices=3), 6, (1,)),
    "jaxplan_gated_experts_backward": (partial(dropless_rules.backward, matrices=3), 7, (5,)),
}
