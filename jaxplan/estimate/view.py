"""One table under one set of rules and one rematerialization: what runs when, and who shards what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxplan.estimate.terms import AXES, Terms
from jaxplan.plan.sharding import Rules
from jaxplan.workload.cut import Cut
from jaxplan.workload.table import DimIds, Operation, Phase, Table

Owners = dict[str, int]     # mesh axis -> id of the dim that it shards


@dataclass(frozen=True)
class Executed:
    """An operation at the place where it runs: a forward operation that is recomputed runs in the backward phase."""

    operation: Operation
    phase: Phase
    recomputed: bool = False


class View:
    """A table seen under rules and a cut. Answers are cached: a program has few different tensors."""

    def __init__(self, table: Table, rules: Rules, cut: Cut) -> None:
        self.table, self.rules, self.cut = table, rules, cut
        self.names = [dim.name for dim in table.dims]
        self._owners: dict[DimIds, Owners] = {}

    @cached_property
    def executed(self) -> tuple[Executed, ...]:
        """Everything that one step runs, in order: forward, recomputation and backward, update."""
        operations = self.table.operations
        return (
            *(Executed(op, "forward") for op in operations if op.phase == "forward"),
            *(Executed(operations[i], "backward", True) for i in self.cut.recomputed),
            *(Executed(op, "backward") for op in operations if op.phase == "backward"),
            *(Executed(op, "update") for op in operations if op.phase == "update"),
        )

    def owners(self, dims: DimIds) -> Owners:
        """Which dim of a tensor (or of an operation) each mesh axis shards."""
        if dims not in self._owners:
            found = self.rules.owners([self.names[d] for d in dims], AXES)
            self._owners[dims] = {axis: dims[i] for axis, i in found.items()}
        return self._owners[dims]

    def stored(self, value: int) -> Owners:
        """Which dim of a value each mesh axis shards where it lies: a batch arrives in whole sequences."""
        dims, owners = self.table.values[value].dims, self.owners(self.table.values[value].dims)
        if self.table.values[value].kind != "batch":
            return owners
        arriving = self.rules.input.owners([self.names[d] for d in dims], AXES)
        return {axis: dim for axis, dim in owners.items() if axis in arriving}

    def operation_owners(self, op: Operation) -> Owners:
        """Owners over all dims of an operation. A lookup runs where its table lies, so the table's owners win."""
        owners = self.owners(op.dims)
        if op.kind == "lookup" and op.reads:
            owners = owners | self.owners(self._table_dims(op))
        return owners

    def _table_dims(self, op: Operation) -> DimIds:
        """The dims of a lookup's table: its first operand forward, its result backward (a scatter)."""
        written = self.table.values[op.writes[0]].dims if op.writes else ()
        read = op.reads[0].dims
        return read if op.phase == "forward" else written

    def has_batch(self, dims: Iterable[int]) -> bool:
        return any(self.names[d] == "batch" for d in dims)

    def share(self, dims: DimIds, without: Iterable[str] = ()) -> dict[str, int]:
        """Exponents of the part of a tensor that one device holds, not counting the axes in `without`."""
        return {axis: -1 for axis in self.owners(dims) if axis not in without}

    @cached_property
    def chunked(self) -> frozenset[int]:
        """Values that exist only inside a loop over chunks of the loss: made and read there, one chunk at a time."""
        inside: set[int] = set()
        outside: set[int] = set(self.table.residuals)
        for op in self.table.operations:
            read = {r.value for r in op.reads}
            if "chunk" in op.scope:
                inside |= set(op.writes)
                outside |= read - inside
            else:
                outside |= read | set(op.writes)
        return frozenset(v for v in inside - outside if self.has_batch(self.table.values[v].dims))

    def repeats_loss(self, run: Executed) -> bool:
        """Whether an operation does again in the backward pass what the loss has done forward.

        Two loops over chunks do it twice; with a single chunk there is no loop, and XLA does it once.
        """
        op = run.operation
        if run.phase != "backward" or "chunk" not in op.scope or op.kind != "matmul":
            return False
        return any(
            other.phase == "forward" and set(other.dims) == set(op.dims) and set(other.contracted) == set(op.contracted)
            for other in self.table.operations
            if "chunk" in other.scope and other.kind == "matmul"
        )

    def live(self, value: int, without: Iterable[str] = ()) -> Terms:
        """Bytes of one copy of a value on one device while one microbatch runs."""
        dims = self.table.values[value].dims
        powers = self.share(dims, without)
        if self.has_batch(dims):
            powers["microbatches"] = -1
        if value in self.chunked:
            powers["loss_chunks"] = -1
        return Terms.one(self.table.nbytes(value), **powers)

    def per_step(self, amount: float, dims: DimIds, owners: Iterable[str], phase: Phase) -> Terms:
        """An amount that each execution costs, divided by the axes in `owners`, over all microbatches of a step.

        An operation with a batch dim handles a part of it in each microbatch; one without is repeated whole.
        """
        powers = dict.fromkeys(owners, -1)
        if phase != "update" and not self.has_batch(dims):
            powers["microbatches"] = 1
        return Terms.one(amount, **powers)
