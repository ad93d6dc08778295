"""From what was recorded to a table: atoms resolved to dims, dead operations dropped, values numbered. No JAX here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxplan.workload.labels import DraftOperation, Recorder
from jaxplan.workload.table import Dim, DimIds, Leaf, Operation, Read, Shape, Table, Value

State = Sequence[tuple[str, Shape, int, str]]  # path, shape over atoms, bytes per element, dtype


class Assembly:
    """A finished walk, whose atoms will not change any more.

    Args:
        recorder: what was recorded; its `roots` are what the program returns.
        names: the name of every leaf atom.
    """

    def __init__(self, recorder: Recorder, names: dict[int, str]) -> None:
        self.recorder, self.names = recorder, names
        self.dims: list[Dim] = []
        self._dim_of: dict[int, int] = {}
        self._shapes: dict[Shape, Shape] = {}
        live = _live(recorder)
        self.drafts = [draft for draft, is_live in zip(recorder.operations, live, strict=True) if is_live]
        used = sorted({v for op in self.drafts for v in (*(value for value, _ in op.reads), *op.writes)})
        self.number = {raw: i for i, raw in enumerate(used)}

    def table(self, parameters: State, optimizer: State, batch: State, name: str) -> Table:
        leaves = [self._leaves(state) for state in (parameters, optimizer, batch)]
        values, operations = tuple(map(self._value, self.number)), tuple(map(self._operation, self.drafts))
        return Table(
            dims=tuple(self.dims),
            values=values,
            operations=operations,
            residuals=self._residuals(),
            parameters=leaves[0],
            optimizer=leaves[1],
            batch=leaves[2],
            uncovered=dict(self.recorder.uncovered),
            name=name,
            compute_dtype=self._compute_dtype(),
        )

    def _leaves(self, state: State) -> tuple[Leaf, ...]:
        return tuple(Leaf(path, self._shape(shape), itemsize, dtype) for path, shape, itemsize, dtype in state)

    def _value(self, raw: int) -> Value:
        draft = self.recorder.values[raw]
        return Value(self._shape(draft.shape), draft.itemsize, draft.kind, draft.copies, draft.tag, draft.path)

    def _operation(self, draft: DraftOperation) -> Operation:
        return Operation(
            primitive=draft.primitive,
            kind=draft.kind,
            phase=draft.phase,
            flops=draft.flops,
            reads=tuple(Read(self.number[value], self._read(shape)) for value, shape in draft.reads),
            writes=tuple(self.number[value] for value in draft.writes),
            dims=self._flat(draft.dims),
            contracted=self._flat(draft.contracted),
            times=draft.times,
            scope=draft.scope,
            source=draft.source,
        )

    def _residuals(self) -> tuple[int, ...]:
        """Values made in the forward pass that an operation of the backward pass reads."""
        late = {value for op in self.drafts if op.phase == "backward" for value, _ in op.reads}
        found = []
        for raw, number in self.number.items():
            draft = self.recorder.values[raw]
            if raw in late and draft.phase == "forward" and draft.kind == "intermediate":
                found.append(number)
        return tuple(found)

    def _compute_dtype(self) -> str:
        """The dtype of the operands of most matmul FLOPs."""
        flops: Counter[str] = Counter()
        for op in self.drafts:
            if op.kind in ("matmul", "attention") and op.reads:
                flops[self.recorder.values[op.reads[0][0]].dtype] += int(op.flops * op.times)
        return flops.most_common(1)[0][0] if flops else "float32"

    def _shape(self, raw: Shape) -> Shape:
        """A value's shape; copies whose original is not in it turn back into the original."""
        if raw not in self._shapes:
            atoms = self.recorder.atoms
            self._shapes[raw] = tuple(
                tuple(self._dim(atom) for atom in sequence) for sequence in atoms.restore(atoms.resolve(raw))
            )
        return self._shapes[raw]

    def _read(self, raw: Shape) -> Shape:
        """A shape as an operation reads it; copies stay."""
        return tuple(tuple(self._dim(atom) for atom in self.recorder.atoms.leaves(sequence)) for sequence in raw)

    def _flat(self, raw: Shape) -> DimIds:
        """All dims of an operation, each once; copies stay."""
        return tuple(dict.fromkeys(self._dim(atom) for atom in self.recorder.atoms.flat(raw)))

    def _dim(self, atom: int) -> int:
        if atom not in self._dim_of:
            size = self.recorder.atoms.size(atom)
            self._dim_of[atom] = len(self.dims)
            self.dims.append(Dim(self.names.get(atom, f"?{size}"), size))
        return self._dim_of[atom]


def _live(recorder: Recorder) -> list[bool]:
    """Which operations somebody needs: a trace of a gradient has dead ones, which XLA drops as well."""
    wanted = set(recorder.roots)
    live = [False] * len(recorder.operations)
    for i in range(len(live) - 1, -1, -1):
        operation = recorder.operations[i]
        if any(value in wanted for value in operation.writes):
            live[i] = True
            wanted.update(value for value, _ in operation.reads)
    return live
