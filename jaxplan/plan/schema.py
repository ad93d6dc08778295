"""`plan.json` as pydantic reads it: the border, where bad files are found. No JAX here."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis
from jaxplan.plan.record import (
    DimNames,
    LeafSpec,
    MemoryLedger,
    Part,
    RunnerUp,
    SearchRecord,
    Source,
    TimeLedger,
)
from jaxplan.workload.shape import Workload

Count = Annotated[int, pydantic.Field(ge=1)]
Entry = str | list[str] | None  # one entry of a PartitionSpec, and of the dims' names


class Section(pydantic.BaseModel):
    """Base of every section: nothing is converted silently, an unknown key is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


def from_entries(entries: Sequence[Entry]) -> DimNames:
    """`["a", null, ["b", "c"]]` as `(("a",), (), ("b", "c"))`."""
    return tuple((e,) if isinstance(e, str) else tuple(e or ()) for e in entries)


def to_entries(entries: DimNames) -> list[Entry]:
    """The reverse of `from_entries`."""
    return [None if not e else e[0] if len(e) == 1 else list(e) for e in entries]


class AxisSection(Section):
    axis: str
    size: int
    role: str
    links: str = ""

    def axis_of(self) -> MeshAxis:
        return MeshAxis(self.axis, self.size, self.role)


class RulesSection(Section):
    compute: dict[str, list[str]]
    optimizer: dict[str, list[str]]
    gradients: dict[str, list[str]]
    priority: list[str]


class LeafSection(Section):
    path: str
    shape: list[int]
    dtype: str
    itemsize: int
    dims: list[Entry]
    spec: list[Entry]

    def leaf(self) -> LeafSpec:
        dims, spec = from_entries(self.dims), from_entries(self.spec)
        return LeafSpec(self.path, tuple(self.shape), self.dtype, self.itemsize, dims, spec)


class LeavesSection(Section):
    parameters: list[LeafSection]
    optimizer: list[LeafSection]
    batch: list[LeafSection]


class BytesPart(Section):
    name: str
    bytes: float
    source: Source


class SecondsPart(Section):
    name: str
    seconds: float
    source: Source


class MemorySection(Section):
    total: float
    capacity: int
    parts: list[BytesPart]

    def ledger(self) -> MemoryLedger:
        return MemoryLedger(tuple(Part(p.name, p.bytes, p.source) for p in self.parts), self.capacity)


class TimeSection(Section):
    value: float
    low: float
    high: float
    parts: list[SecondsPart]

    def ledger(self) -> TimeLedger:
        return TimeLedger(tuple(Part(p.name, p.seconds, p.source) for p in self.parts), self.low, self.high)


class SearchSection(Section):
    candidates: int
    feasible: int
    rejected: dict[str, int]
    runner_ups: list[RunnerUp]

    def record(self) -> SearchRecord:
        return SearchRecord(self.candidates, self.feasible, self.rejected, tuple(self.runner_ups))


class PlanFile(Section):
    """The whole file, in the order in which it is written."""

    schema_: Annotated[str, pydantic.Field(alias="schema")]
    fingerprint: str
    machine: Machine
    workload: Workload
    workload_fingerprint: str
    mesh: list[AxisSection]
    remat: str
    microbatches: Count
    loss_chunks: Count
    attention: Literal["splash", "cudnn", "blockwise", "as-written"]
    zero1: bool
    sequence_sharding: bool
    zero2: bool
    context_attention: Literal["ring", "ulysses"]
    schedule: str
    repeats: Count
    offload_optimizer: bool
    compiler_flags: dict[str, str]
    rules: RulesSection
    memory_bytes: MemorySection | None
    step_time_s: TimeSection | None
    evidence: dict[str, dict[str, Any]]
    search: SearchSection | None
    versions: dict[str, str]
    assumptions: list[str]
    leaves: LeavesSection


def fault(error: pydantic.ValidationError) -> tuple[str, str]:
    """The first fault of a file in words: (the key and what is wrong with it, what was expected)."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "the file as a whole"
    if first["type"] == "missing":
        return f"key {key} is missing", _expected(first["loc"]) or "a value"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"key {key} is not known", f"one of {', '.join(_keys(first['loc'][:-1]))}"
    if first["type"] == "value_error":
        return f"{key}: {first.get('ctx', {}).get('error', first['msg'])}", ""
    shown = repr(first["input"])
    shown = shown if len(shown) < 80 else shown[:77] + "..."
    expected = first["msg"].removeprefix("Input should be ")
    return f"key {key} is {shown}", expected[:1].lower() + expected[1:]


def _fields(kind: Any) -> Mapping[str, Any]:
    """Keys and types of a section or dataclass; empty for anything else."""
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return typing.get_type_hints(kind)
    return {}


def _type_at(location: Sequence[str | int]) -> Any:
    """The type that the file has at a location; None where it leads nowhere."""
    kind: Any = PlanFile
    for part in location:
        options = [kind, *typing.get_args(kind)]
        kind = next((_fields(o)[str(part)] for o in options if str(part) in _fields(o)), None)
        if kind is None:
            members = [o for option in options for o in typing.get_args(option) if _fields(o)]
            kind = members[0] if isinstance(part, int) and members else None
        if kind is None:
            return None
    return kind


def _expected(location: Sequence[str | int]) -> str:
    kind = _type_at(location)
    if kind is None:
        return ""
    if _fields(kind):
        return f"an object with the keys {', '.join(_fields(kind))}"
    members = [member for member in typing.get_args(kind) if _fields(member)]
    if typing.get_origin(kind) is list and members:
        return f"a list of objects with the keys {', '.join(_fields(members[0]))}"
    return (
        kind.__name__
        if isinstance(kind, type) and not typing.get_args(kind)
        else str(kind).replace("typing.", "")
    )


def _keys(location: Sequence[str | int]) -> Sequence[str]:
    kind = _type_at(location)
    return [key for option in (kind, *typing.get_args(kind)) for key in _fields(option)] or [
        "the documented keys"
    ]
