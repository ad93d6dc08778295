"""One table under one set of rules and one rematerialization: what runs when, and who shards what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from jaxplan.estimate.terms import Terms, total
from jaxplan.plan.sharding import AXES, Rules
from jaxplan.workload.cut import LAYERS, Cut
from jaxplan.workload.table import DimIds, Leaf, Operation, Phase, Table

Owners = dict[str, int]     # mesh axis -> id of the dim that it shards
IN_LAYERS = tuple(axis for axis in AXES if axis != "stage")


@dataclass(frozen=True)
class Executed:
    """An operation at the place where it runs: a forward operation that is recomputed runs in the backward phase."""

    operation: Operation
    phase: Phase
    recomputed: bool = False
    again: bool = False     # in a loop of its own, before a group of layers is gone through backward


Answer = TypeVar("Answer")


def once(question: Callable[[View], Answer]) -> Callable[[View], Answer]:
    """A question about a whole view, asked by several ledgers: answered once."""

    def ask(view: View) -> Answer:
        if question not in view.answers:
            view.answers[question] = question(view)
        return view.answers[question]

    return ask


class View:
    """A table seen under rules and a cut. Answers are cached: a program has few different tensors.

    Inside of the loop over layers the axis `stage` holds layers and shards nothing else; outside of it a stage is one
    more part of the batch.

    Args:
        apart: replicas add up their gradients over microbatches before they reduce them, as the reference decoder's do.
    """

    def __init__(self, table: Table, rules: Rules, cut: Cut, apart: bool = True) -> None:
        self.table, self.rules, self.cut, self.apart = table, rules, cut, apart
        self.names = [dim.name for dim in table.dims]
        self.answers: dict[Callable, Any] = {}
        self.layout: dict[Any, Any] = {}        # answers that the table and the rules decide alone

    def under(self, cut: Cut) -> View:
        """The same table and rules under another cut; what only they decide is shared."""
        other = View(self.table, self.rules, cut, self.apart)
        other.layout = self.layout
        return other

    def laid_out(self, key: Any, answer: Callable[[], Answer]) -> Answer:
        """An answer that the table and the rules decide alone, found once for all cuts."""
        if key not in self.layout:
            self.layout[key] = answer()
        return self.layout[key]

    @cached_property
    def executed(self) -> tuple[Executed, ...]:
        """Everything that one step runs, in order: forward, recomputation and backward, update."""
        operations = self.table.operations
        return (
            *(Executed(op, "forward") for op in operations if op.phase == "forward"),
            *(Executed(operations[i], "backward", True, True) for i in self.cut.again),
            *(Executed(operations[i], "backward", True) for i in self.cut.recomputed),
            *(Executed(op, "backward") for op in operations if op.phase == "backward"),
            *(Executed(op, "update") for op in operations if op.phase == "update"),
        )

    @property
    def inside(self) -> frozenset[int]:
        """Values that operations inside of the loop over layers read or write."""
        return self.laid_out("inside", self._inside)

    def _inside(self) -> frozenset[int]:
        found: set[int] = set()
        for op in self.table.operations:
            if LAYERS in op.scope:
                found.update(read.value for read in op.reads)
                found.update(op.writes)
        return frozenset(found)

    def owners(self, dims: DimIds, inside: bool) -> Owners:
        """Which dim of a tensor (or of an operation) each mesh axis shards, inside or outside of the layers."""
        return self.laid_out((dims, inside), lambda: self._owners(self.rules, dims, inside))

    def _owners(self, rules: Rules, dims: DimIds, inside: bool) -> Owners:
        found = rules.owners([self.names[d] for d in dims], IN_LAYERS if inside else AXES)
        return {axis: dims[i] for axis, i in found.items()}

    def stored(self, value: int, inside: bool) -> Owners:
        """Which dim of a value each mesh axis shards where it lies: a batch arrives in whole sequences."""
        dims = self.table.values[value].dims
        owners = self.owners(dims, inside)
        if self.table.values[value].kind != "batch":
            return owners
        arriving = self.rules.input.owners([self.names[d] for d in dims], AXES)
        return {axis: dim for axis, dim in owners.items() if axis in arriving}

    def gradient_owners(self, dims: DimIds, inside: bool) -> Owners:
        """Which dim of a parameter's gradient each mesh axis shards where it is kept."""
        key = "gradient", dims, inside
        return self.laid_out(key, lambda: self._owners(self.rules.storage_of_gradients, dims, inside))

    def operation_owners(self, op: Operation) -> Owners:
        """Owners over all dims of an operation. A lookup runs where its table lies, so the table's owners win."""
        return self.laid_out(id(op), lambda: self._operation_owners(op))

    def _operation_owners(self, op: Operation) -> Owners:
        inside = LAYERS in op.scope
        owners = self.owners(op.dims, inside)
        if op.kind == "lookup" and op.reads:
            owners = owners | self.owners(self._table_dims(op), inside)
        return owners

    def _table_dims(self, op: Operation) -> DimIds:
        """The dims of a lookup's table: its first operand forward, its result backward (a scatter)."""
        written = self.table.values[op.writes[0]].dims if op.writes else ()
        read = op.reads[0].dims
        return read if op.phase == "forward" else written

    @cached_property
    def places(self) -> dict[int, int]:
        """For each dim the one along whose shards it lies: an expert's places lie where their group's tokens do."""
        seq = next((i for i, name in enumerate(self.names) if name == "seq"), None)
        return {i: seq if name in ("slot", "room") and seq is not None else i for i, name in enumerate(self.names)}

    def has_batch(self, dims: Iterable[int]) -> bool:
        return any(self.names[d] == "batch" for d in dims)

    @property
    def chunked(self) -> frozenset[int]:
        """Values that exist only inside a loop over chunks of the loss: made and read there, one chunk at a time."""
        return self.laid_out("chunked", self._chunked)

    def _chunked(self) -> frozenset[int]:
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

    @property
    def parameter_bytes(self) -> Terms:
        """Bytes of all parameters on one device."""
        return self.laid_out("parameters", lambda: self.leaf_bytes(self.rules.storage, self.table.parameters))

    @property
    def gradient_bytes(self) -> Terms:
        """Bytes of all gradients on one device, as they are kept until the update."""
        rules = self.rules.storage_of_gradients
        return self.laid_out("gradients", lambda: self.leaf_bytes(rules, self.table.parameters))

    @property
    def optimizer_bytes(self) -> Terms:
        """Bytes of one device's part of the optimizer's state."""
        rules = self.rules.storage_of_optimizer
        return self.laid_out("optimizer", lambda: self.leaf_bytes(rules, self.table.optimizer))

    def leaf_bytes(self, rules: Rules, leaves: Iterable[Leaf]) -> Terms:
        """Bytes of arrays on one device, as their PartitionSpecs under these rules store them."""
        parts = []
        for leaf in leaves:
            spec = rules.spec(leaf.shape, self.names, AXES)
            nbytes = self.table.elements(leaf.dims) * leaf.itemsize
            parts.append(Terms.one(nbytes, **{axis: -1 for axes in spec for axis in axes}))
        return total(parts)

    def live(self, value: int, without: Iterable[str] = ()) -> Terms:
        """Bytes of one copy of a value on one device while one microbatch runs.

        Args:
            without: axes over which it is whole at the time.
        """
        dims, inside = self.table.values[value].dims, value in self.inside
        powers = {axis: -1 for axis in self.owners(dims, inside) if axis not in without}
        if self.has_batch(dims):
            powers |= {"microbatches": -1, "pipelined": -1} if inside else {"microbatches": -1}
        if value in self.chunked:
            powers["loss_chunks"] = -1
        if "room" in {self.names[d] for d in dims}:    # for all that can come, from every shard of the experts
            powers["expert"] = powers.get("expert", 0) + 1
        return Terms.one(self.table.nbytes(value), **powers)

    def stacked(self, value: int) -> Terms:
        """Bytes of all copies of a value of the layers that a device keeps at the same time."""
        return (self.live(value) * self.cut.copies(self.table, value)).times(stage=-1, in_flight=1)

    def per_step(self, amount: float, dims: DimIds, owners: Iterable[str], phase: Phase, inside: bool) -> Terms:
        """An amount that each execution costs, divided by the axes in `owners`, over all microbatches of a step.

        An operation with a batch dim handles a part of it in each microbatch; one without is repeated whole. Inside of
        the layers a stage has its share of them; it is busy during the bubble, too.
        """
        powers = dict.fromkeys(owners, -1)
        if phase != "update":
            powers |= {"stage": -1} if inside else {}
            if not self.has_batch(dims):
                powers["microbatches"] = 1
            elif inside:
                powers["bubble"] = 1
        return Terms.one(amount, **powers)

    def executions(self, times: int, dims: DimIds, phase: Phase, inside: bool) -> Terms:
        """How often something runs on a device in one step."""
        if phase == "update":
            return Terms.one(times)
        powers = {"microbatches": 1}
        if inside:
            powers |= {"stage": -1, "pipelined": 1, "bubble": 1} if self.has_batch(dims) else {"stage": -1}
        return Terms.one(times, **powers)
