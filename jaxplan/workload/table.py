"""The (operation, work, bytes, dims) table: what a traced program costs, with every dim named. No JAX here.

A table is the border between programs and prices. `workload.program` writes one from any traced JAX program;
`estimate` reads the cost of every plan off it. It is plain data and survives JSON, so that a trace is made once.

Words. A *dim* here is an atom: the smallest unit of a tensor dimension that the program ever splits (a grouped-query
head dimension of 32 is the sequence kv_heads 8, group 4). A tensor's shape is a tuple of sequences of atoms, major
first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Phase = Literal["forward", "backward", "update"]
Kind = Literal["matmul", "attention", "elementwise", "reduce", "lookup", "move"]
DimIds = tuple[int, ...]            # flat: indices into Table.dims
Shape = tuple[DimIds, ...]          # one sequence of atoms per tensor dimension


@dataclass(frozen=True)
class Dim:
    """One atom: its name (`batch`, `seq`, `seq'`, `embed`, ...) and global size."""

    name: str
    size: int


@dataclass(frozen=True)
class Value:
    """One array of the program (of one layer, where it lives in a loop over layers).

    `copies` is how many of it exist when it is kept for the backward pass: the product of the trip counts of the
    loops around it. `tag` is its `checkpoint_name`, `path` its parameter path.
    """

    shape: Shape
    itemsize: int
    kind: Literal["parameter", "batch", "optimizer", "intermediate"] = "intermediate"
    copies: int = 1
    tag: str = ""
    path: str = ""

    @cached_property
    def dims(self) -> DimIds:
        return tuple(d for sequence in self.shape for d in sequence)


@dataclass(frozen=True)
class Read:
    """An operand: the value, and the atoms as which the operation reads it (they differ where data must move)."""

    value: int
    shape: Shape

    @cached_property
    def dims(self) -> DimIds:
        return tuple(d for sequence in self.shape for d in sequence)


@dataclass(frozen=True)
class Operation:
    """One operation of the unsharded program.

    `times` is the product of the trip counts of the loops around it; `flops` is one execution over the whole
    (global) problem; `dims` are all atoms that it iterates over and `contracted` those that its results lack.
    `scope` names the loops around it, outermost first (`layers`, `chunk`).
    """

    primitive: str
    kind: Kind
    phase: Phase
    flops: float
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    dims: DimIds
    contracted: DimIds = ()
    times: int = 1
    scope: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Leaf:
    """One array of the training state or batch: its path, its named shape, its bytes per element, its dtype."""

    path: str
    shape: Shape
    itemsize: int
    dtype: str = ""

    @cached_property
    def dims(self) -> DimIds:
        return tuple(d for sequence in self.shape for d in sequence)


@dataclass(frozen=True)
class Table:
    """A whole training step: operations over values over dims, and the state that it keeps.

    `residuals` are ids of the forward values that the backward pass reads when nothing is rematerialized.
    `uncovered` counts, by primitive, what could not be analysed: it is shown, never dropped.
    """

    dims: tuple[Dim, ...]
    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    residuals: tuple[int, ...]
    parameters: tuple[Leaf, ...]
    optimizer: tuple[Leaf, ...]
    batch: tuple[Leaf, ...]
    uncovered: Mapping[str, int]
    name: str = ""
    compute_dtype: str = "bfloat16"     # of the matmuls' operands

    def elements(self, dims: DimIds) -> int:
        """Elements of a tensor with these atoms."""
        return math.prod(self.dims[d].size for d in dims)

    def nbytes(self, value: int) -> int:
        """Bytes of one copy of a value, unsharded."""
        return self._value_bytes[value]

    @cached_property
    def _value_bytes(self) -> tuple[int, ...]:
        return tuple(self.elements(value.dims) * value.itemsize for value in self.values)

    def flops(self, kind: Kind | None = None, phase: Phase | None = None) -> float:
        """Total FLOPs of one step, unsharded, without recomputation."""
        return sum(
            op.flops * op.times
            for op in self.operations
            if (kind is None or op.kind == kind) and (phase is None or op.phase == phase)
        )

    @property
    def model_flops(self) -> float:
        """FLOPs that the mathematics needs, if every place of an expert is taken (`needed_flops`)."""
        return self.needed_flops(1.0)

    def needed_flops(self, room_factor: float) -> float:
        """FLOPs that the mathematics needs: three times the forward matmuls and attention (Chowdhery et al. 2022,
        arXiv:2204.02311, appendix B: backward costs twice forward; recomputation does not count).

        Args:
            room_factor: places of experts over the tokens that take them: empty places do not count.
        """
        expert = {i for i, dim in enumerate(self.dims) if dim.name == "expert"}
        return 3.0 * sum(
            op.flops * op.times / (room_factor if expert & set(op.dims) else 1.0)
            for op in self.operations
            if op.phase == "forward" and op.kind in ("matmul", "attention")
        )

    @property
    def parameter_count(self) -> int:
        return sum(self.elements(leaf.dims) for leaf in self.parameters)

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping) -> Table:
        def shape(rows: list) -> Shape:
            return tuple(tuple(row) for row in rows)

        def leaf(row: Mapping) -> Leaf:
            return Leaf(row["path"], shape(row["shape"]), row["itemsize"], row.get("dtype", ""))

        return cls(
            dims=tuple(Dim(**row) for row in data["dims"]),
            values=tuple(Value(**{**row, "shape": shape(row["shape"])}) for row in data["values"]),
            operations=tuple(
                Operation(
                    **{
                        **row,
                        "reads": tuple(Read(r["value"], shape(r["shape"])) for r in row["reads"]),
                        "writes": tuple(row["writes"]),
                        "dims": tuple(row["dims"]),
                        "contracted": tuple(row["contracted"]),
                        "scope": tuple(row["scope"]),
                    }
                )
                for row in data["operations"]
            ),
            residuals=tuple(data["residuals"]),
            parameters=tuple(leaf(row) for row in data["parameters"]),
            optimizer=tuple(leaf(row) for row in data["optimizer"]),
            batch=tuple(leaf(row) for row in data["batch"]),
            uncovered=dict(data["uncovered"]),
            name=data["name"],
            compute_dtype=data["compute_dtype"],
        )
