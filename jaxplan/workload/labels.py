"""Labels: what is known of a traced program's arrays and operations while its dims are being named.

A `Recorder` is filled by the rules of `workload.primitives` as `workload.interpreter` walks a jaxpr. Its shapes are
sequences of atoms that later unifications may still split or join; `workload.program` resolves them in the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxplan.workload.atoms import Atoms
from jaxplan.workload.table import DimIds, Kind, Phase, Shape

KEY_BYTES = 8  # a typed PRNG key holds two uint32 (threefry2x32, the default implementation)


class Array(NamedTuple):
    """One array at one place of the program: its named dimensions, and the value that it is (None for a literal)."""

    shape: Shape
    value: int | None = None


@dataclass
class DraftValue:
    """What becomes a `table.Value`; `phase` is when it is made."""

    shape: Shape
    itemsize: int
    kind: Literal["parameter", "batch", "optimizer", "intermediate"] = "intermediate"
    copies: int = 1
    tag: str = ""
    path: str = ""
    phase: Phase = "forward"
    dtype: str = ""


@dataclass
class DraftOperation:
    """What becomes a `table.Operation`; each read is (value, shape as it is read)."""

    primitive: str
    kind: Kind
    phase: Phase
    flops: float
    reads: list[tuple[int, Shape]]
    writes: list[int]
    dims: Shape
    contracted: Shape
    times: int
    scope: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Place:
    """Where in the program the walk is: name stack, phase, loops around it, and the path of equation numbers."""

    stack: str = ""
    phase: Phase = "forward"
    times: int = 1
    scope: tuple[str, ...] = ()
    path: tuple[int, ...] = ()

    def inside(self, stack: str) -> Place:
        """The place of something called under this further name stack.

        Autodiff names what it transposes `transpose(...)` and what `jax.checkpoint` runs again `rematted_computation`.
        """
        whole = f"{self.stack}/{stack}" if self.stack and stack else self.stack or stack
        late = "transpose(" in stack or "rematted" in stack
        return replace(self, stack=whole, phase="backward" if late and self.phase == "forward" else self.phase)


def itemsize(aval: Any) -> int:
    """Bytes of one element of an abstract value; typed PRNG keys and float0 have no NumPy dtype of their own."""
    try:
        return np.dtype(aval.dtype).itemsize
    except TypeError:
        return KEY_BYTES


def sizes(variable: Any) -> tuple[int, ...]:
    """The sizes of an equation's operand or result (a token has none)."""
    return tuple(getattr(variable.aval, "shape", ()))


@dataclass
class Recorder:
    """Atoms, values and operations found so far.

    Attributes:
        uncovered: primitives, by name, that have no rule or that a rule could not name.
        conflicts: unifications that were refused: the operand is read under other atoms than it is stored.
        slices: a stacked value to its one-iteration slice, so that a forward loop's outputs and a backward loop's
            inputs are the same value.
        layered: values that are stacked by a loop over layers.
        parts: a new dim's atom to the dim that it was cut, padded or strided from, to be named after it.
        roots: values that outlive the operations: what loops carry and stack, what the step returns.
        outputs: shapes of the results of each equation by path, kept for `workload.impose`.
        tables: for each lookup by path, the shapes of its table, of its indices, and of all its dims.
        contracted: for each matmul by path, the dims that its result lacks.
    """

    atoms: Atoms = field(default_factory=Atoms)
    values: list[DraftValue] = field(default_factory=list)
    operations: list[DraftOperation] = field(default_factory=list)
    uncovered: Counter = field(default_factory=Counter)
    conflicts: int = 0
    place: Place = field(default_factory=Place)
    slices: dict[int, int] = field(default_factory=dict)
    layered: set[int] = field(default_factory=set)
    parts: dict[int, DimIds] = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    outputs: dict[tuple[int, ...], list[Shape]] = field(default_factory=dict)
    tables: dict[tuple[int, ...], tuple[Shape, Shape, Shape]] = field(default_factory=dict)
    contracted: dict[tuple[int, ...], Shape] = field(default_factory=dict)

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Walk at another place, then return."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def add_value(self, aval: Any, shape: Shape, **facts: Any) -> Array:
        """A new value made at this place."""
        dtype = str(getattr(aval, "dtype", ""))
        facts = {"copies": self.place.times, "phase": self.place.phase, "dtype": dtype, **facts}
        self.values.append(DraftValue(shape, itemsize(aval), **facts))
        return Array(shape, len(self.values) - 1)

    def fresh(self, aval: Any, origin: str) -> Array:
        """A value of which nothing is known but its sizes."""
        return self.add_value(aval, self.atoms.fresh(getattr(aval, "shape", ()), origin))

    def unify(self, x: Shape, y: Shape) -> bool:
        """Unify two shapes, and count a refusal."""
        accepted = self.atoms.unify_shapes(x, y)
        self.conflicts += not accepted
        return accepted

    def distinct(self, shape: Shape) -> Shape:
        """Make the shape's atoms distinct, and count a replacement."""
        shape, changed = self.atoms.distinct(shape)
        self.conflicts += changed
        return shape

    def add_operation(
        self,
        primitive: str,
        kind: Kind,
        reads: Sequence[tuple[Array, Shape]],
        results: Sequence[Array],
        dims: Shape,
        contracted: Shape = (),
        flops: float = 0.0,
        scope: tuple[str, ...] = (),
    ) -> None:
        """An operation at this place; reads of literals are dropped, `scope` is appended to the loops around it."""
        place = self.place
        self.operations.append(
            DraftOperation(
                primitive=primitive,
                kind=kind,
                phase=place.phase,
                flops=flops,
                reads=[(array.value, shape) for array, shape in reads if array.value is not None],
                writes=[array.value for array in results if array.value is not None],
                dims=dims,
                contracted=contracted,
                times=place.times,
                scope=place.scope + scope,
                source=place.stack,
            )
        )

    def uncover(self, primitive: str, variables: Sequence[Any], operands: Sequence[Array] = ()) -> list[Array]:
        """Count what cannot be analysed; its results are fresh, and still known to depend on its operands."""
        self.uncovered[primitive] += 1
        results = [self.fresh(variable.aval, primitive) for variable in variables]
        if results:
            reads = [(operand, operand.shape) for operand in operands]
            self.add_operation(primitive, "move", reads, results, results[0].shape)
        return results


def elements(variable: Any) -> int:
    """Elements of an operand or result."""
    return math.prod(sizes(variable))
