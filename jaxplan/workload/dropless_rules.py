"""What the kernels of experts without a capacity cost, and how their dims are named (`workload.kernels.dropless`).

A kernel is priced by the operations inside of it. Each expert has its even share of a row's choices: what the busiest
has more is the estimate's to add. The dim `room` are the places of rows at an expert; on a device there is room for n
times its share, n being the shards of the experts.

Tensor axes: the sequence is gathered over them on the way in, results are summed and scattered along it on the way out,
so `room` does not lie over them as the slots of a capacity do.

Legend: B batch, S seq, D embed, F mlp, E experts, k choices a token, R room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxplan.workload.labels import Array, Recorder, elements, sizes
from jaxplan.workload.table import Shape

ROOM = "room"


def choose(recorder: Recorder, equation: Any, operands: Sequence[Array]) -> list[Array]:
    """scores (B, S, E) -> experts (B, S, k); one FLOP a score."""
    scores = operands[0].shape
    kept = recorder.atoms.sequence(sizes(equation.outvars[0])[2], "top_k")
    whole = recorder.distinct((*scores[:2], kept, scores[2]))
    result = recorder.add_value(equation.outvars[0].aval, whole[:3])
    work = float(elements(equation.invars[0]))
    recorder.add_operation(
        equation.params["name"], "reduce", [(operands[0], scores)], [result], whole, whole[3:], work
    )
    return [result]


class _Layer:
    """The experts of one call, their dims and what is done to them.

    Args:
        operands: x (B, S, D), gates (B, S, k), experts (B, S, k), then matrices (D, E, F).
    """

    def __init__(self, recorder: Recorder, equation: Any, operands: Sequence[Array], matrices: int) -> None:
        self.recorder, self.name = recorder, equation.params["name"]
        self.x, self.gates, self.chosen, *weights = operands[: 3 + matrices]
        self.ups, self.down = weights[:-1], weights[-1]
        self.dtype = equation.invars[0].aval
        recorder.unify(self.gates.shape[:2], self.x.shape[:2])
        embed, expert, mlp = self.down.shape
        for weight in (*self.ups, self.down):
            recorder.unify(weight.shape, self.down.shape)
        recorder.unify((embed,), (self.x.shape[2],))
        rows, experts = elements(equation.invars[1]), sizes(equation.invars[3])[1]
        share = math.ceil(rows / sizes(equation.invars[1])[0] / experts)
        room = recorder.atoms.sequence(share, ROOM)
        self.batch, self.embed, self.mlp = self.x.shape[0], embed, mlp
        self.whole = recorder.distinct((self.batch, expert, room, embed, mlp))
        self.at_experts, self.hidden = self.whole[:4], (*self.whole[:3], self.whole[4])
        self.work = 2.0 * recorder.atoms.elements(recorder.atoms.flat(self.whole))
        self.passed = float(recorder.atoms.elements(recorder.atoms.flat(self.hidden)))

    def value(self, shape: Shape) -> Array:
        return self.recorder.add_value(self.dtype, shape)

    def add(
        self, kind: Any, reads: Sequence[Array], out: Array, dims: Shape, gone: Shape = (), work: float = 0.0
    ) -> Array:
        shapes = [(array, array.shape) for array in reads]
        self.recorder.add_operation(self.name, kind, shapes, [out], dims, gone, work)
        return out

    def sent(self, x: Array, *others: Array) -> Array:
        """Rows of x at their experts, looked up where x lies but with its whole sequence."""
        return self.add("move", (x, *others), self.value(self.at_experts), (self.batch, self.whole[2], self.embed))

    def made(self, rows: Array) -> tuple[list[Array], Array, Array]:
        """What the first matrices make, the hidden values, and what the last one makes of them.

        The last product's sums over parts of F stay as they are until they are with their tokens: `returned`.
        """
        ups = [
            self.add("matmul", (rows, up), self.value(self.hidden), self.whole, (self.embed,), self.work)
            for up in self.ups
        ]
        hidden = self.add("elementwise", ups, self.value(self.hidden), self.hidden, (), self.passed)
        fed = self.add("matmul", (hidden, self.down), self.value(self.at_experts), self.whole, (), self.work)
        return ups, hidden, fed

    def returned(self, reads: Sequence[Array], out: Array, gone: Shape = ()) -> Array:
        """Something of each token made of its rows: summed over parts of F, and over the dims that are gone."""
        dims = self.recorder.distinct((*out.shape, *gone, self.mlp))
        tokens = self.recorder.atoms.elements(self.recorder.atoms.flat(self.gates.shape))
        work = 2.0 * tokens * self.recorder.atoms.elements(self.recorder.atoms.flat((self.embed,)))
        return self.add("move", reads, out, dims, (*gone, self.mlp), work)

    def gradient(self, weight: Array, reads: Sequence[Array], aval: Any) -> Array:
        """The gradient of a matrix: rows times rows, over rows and room."""
        result = self.recorder.add_value(aval, weight.shape)
        return self.add("matmul", reads, result, self.whole, (self.batch, self.whole[2]), self.work)


def forward(recorder: Recorder, equation: Any, operands: Sequence[Array], matrices: int) -> list[Array]:
    """(x, gates, experts, matrices) -> (B, S, D): one product a matrix of all rows, 2 B S k D F FLOPs each."""
    layer = _Layer(recorder, equation, operands, matrices)
    rows = layer.sent(layer.x, layer.chosen)
    _, _, fed = layer.made(rows)
    return [layer.returned((layer.gates, fed, layer.chosen), layer.value(layer.x.shape))]


def backward(recorder: Recorder, equation: Any, operands: Sequence[Array], matrices: int) -> list[Array]:
    """(x, gates, experts, matrices, dout) -> gradients of all but the experts: everything once more, then two products
    a matrix."""
    layer, gradient = _Layer(recorder, equation, operands, matrices), operands[3 + matrices]
    recorder.unify(gradient.shape, layer.x.shape)
    rows = layer.sent(layer.x, layer.chosen)
    ups, hidden, fed = layer.made(rows)
    d_gates = layer.returned(
        (fed, gradient, layer.chosen),
        recorder.add_value(equation.outvars[1].aval, layer.gates.shape),
        (layer.embed,),
    )
    d_fed = layer.sent(gradient, layer.gates, layer.chosen)
    d_hidden = layer.value(layer.hidden)
    layer.add("matmul", (d_fed, layer.down), d_hidden, layer.whole, (layer.embed,), layer.work)
    d_ups = [
        layer.add("elementwise", (*ups, d_hidden), layer.value(layer.hidden), layer.hidden, (), layer.passed)
        for _ in ups
    ]
    weights = [(up, (rows, d_up)) for up, d_up in zip(layer.ups, d_ups, strict=True)]
    weights.append((layer.down, (hidden, d_fed)))
    d_weights = [
        layer.gradient(weight, reads, variable.aval)
        for (weight, reads), variable in zip(weights, equation.outvars[2:], strict=True)
    ]
    d_rows = layer.value(layer.at_experts)
    layer.add("matmul", (*d_ups, *layer.ups), d_rows, layer.whole, (), layer.work * len(ups))
    d_x = layer.returned((d_rows, layer.chosen), layer.value(layer.x.shape))
    return [d_x, d_gates, *d_weights]
