"""What is known about a plan: where arrays lie, ledgers, evidence, how it was found. No JAX here.

A `Plan` is the decision; a `PlanRecord` is the decision with its consequences, and what `plan.json` holds.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from jaxplan.plan.plan import Plan
from jaxplan.plan.sharding import Rules, Spec
from jaxplan.workload.table import Leaf, Table

Source = Literal["estimated", "partitioned", "compiled", "measured", "published"]
SOURCES: tuple[str, ...] = get_args(Source)
TIERS = (
    "estimated",
    "partitioned",
    "compiled",
    "measured",
)  # the cheapest first, each proving the one before
PACKAGES = ("jaxplan", "jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "flax", "optax")
RELATIVE_TOLERANCE = 1e-9  # float sums in another order differ by less

DimNames = tuple[tuple[str, ...], ...]  # the names of each tensor dimension, major first; () is not named


@dataclass(frozen=True)
class LeafSpec:
    """One array of the training state or batch, and where it lies.

    Attributes:
        path: the keys that lead to it, joined by dots (`layers.query`).
        dtype: its name; empty where only the size of an element is known.
        itemsize: bytes of an element.
        dims: the names of each tensor dimension.
        spec: the mesh axes that shard each tensor dimension.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    dims: DimNames
    spec: Spec

    def __post_init__(self) -> None:
        rank = len(self.shape)
        if len(self.dims) != rank or len(self.spec) != rank:
            raise ValueError(
                f"leaf {self.path}: {rank} dims, expected as many entries in dims and spec, "
                f"got {len(self.dims)} and {len(self.spec)}"
            )
        axes = [axis for entry in self.spec for axis in entry]
        twice = sorted({axis for axis in axes if axes.count(axis) > 1})
        if twice:
            raise ValueError(
                f"leaf {self.path}: spec {show_spec(self.spec)} has axis {', '.join(twice)} twice"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.itemsize

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raises ValueError where an axis is not the mesh's or does not divide its dim."""
        for position, (size, entry) in enumerate(zip(self.shape, self.spec, strict=True)):
            unknown = [axis for axis in entry if axis not in sizes]
            if unknown:
                raise ValueError(
                    f"leaf {self.path}: spec names axis {unknown[0]}, the mesh has {', '.join(sizes)}"
                )
            shards = math.prod(sizes[axis] for axis in entry)
            if size % shards:
                raise ValueError(
                    f"leaf {self.path}: dim {position} of size {size} "
                    f"is not divisible by {'*'.join(entry)} = {shards}"
                )

    def local_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes on one device of a mesh with these axis sizes."""
        return self.nbytes // math.prod(sizes[axis] for entry in self.spec for axis in entry)


def show_spec(spec: Sequence[Sequence[str]]) -> str:
    """A spec as JAX prints it: `P('fsdp', None)`."""
    entries = [repr(e[0]) if len(e) == 1 else repr(tuple(e)) if e else "None" for e in spec]
    return f"P({', '.join(entries)})"


@dataclass(frozen=True)
class Part:
    """One entry of a ledger; `amount` is bytes in a memory ledger and seconds in a time ledger."""

    name: str
    amount: float
    source: Source

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"{self.name}: source must be one of {', '.join(SOURCES)}, got {self.source!r}")
        if not math.isfinite(self.amount):
            raise ValueError(f"{self.name}: amount must be finite, got {self.amount}")


def _sources(parts: Sequence[Part]) -> str:
    return " + ".join(dict.fromkeys(part.source for part in parts))


@dataclass(frozen=True)
class MemoryLedger:
    """Bytes of one device at the largest moment of the step, by kind; the total is their sum."""

    parts: tuple[Part, ...]
    capacity_bytes: int

    @property
    def total_bytes(self) -> float:
        return math.fsum(part.amount for part in self.parts)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def source(self) -> str:
        return _sources(self.parts)


@dataclass(frozen=True)
class TimeLedger:
    """Seconds of one step, by what the device spends them on; the value is their sum.

    `low_s` is the step with everything hidden that can be, `high_s` with nothing hidden.
    """

    parts: tuple[Part, ...]
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        slack = RELATIVE_TOLERANCE * abs(self.value_s)
        if not self.low_s - slack <= self.value_s <= self.high_s + slack:
            raise ValueError(f"step time {self.value_s} s must lie between {self.low_s} and {self.high_s}")

    @property
    def value_s(self) -> float:
        return math.fsum(part.amount for part in self.parts)

    @property
    def source(self) -> str:
        return _sources(self.parts)


@dataclass(frozen=True)
class RunnerUp:
    """A plan that was not chosen; `margin` is how much slower it is than the chosen one (0.05 is 5%)."""

    label: str
    remat: str
    microbatches: int
    step_time_s: float
    margin: float
    source: Source
    note: str = ""


@dataclass(frozen=True)
class SearchRecord:
    """How the plan was found: how many there were, how many fit, why the others did not."""

    candidates: int
    feasible: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    runner_ups: tuple[RunnerUp, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.feasible <= self.candidates:
            raise ValueError(f"feasible must be in 0..{self.candidates}, got {self.feasible}")


@dataclass(frozen=True)
class PlanRecord:
    """A plan and everything known about it.

    Attributes:
        parameters, optimizer, batch: where every array lies.
        placement: mesh axis to the links that it runs on, in words.
        memory, time: the best known ledgers; None where nothing was estimated.
        evidence: by tier (`TIERS`), what that tier said, as plain data. `total_bytes` and `step_time_s` are
            compared.
        versions: of what decided the answer.
        assumptions: what was assumed, one sentence each.
        fingerprint: the plan's when its evidence was gathered; filled in when empty.
    """

    plan: Plan
    parameters: tuple[LeafSpec, ...] = ()
    optimizer: tuple[LeafSpec, ...] = ()
    batch: tuple[LeafSpec, ...] = ()
    placement: Mapping[str, str] = field(default_factory=dict)
    memory: MemoryLedger | None = None
    time: TimeLedger | None = None
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    search: SearchRecord | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    fingerprint: str = ""

    def __post_init__(self) -> None:
        unknown = [tier for tier in self.evidence if tier not in TIERS]
        if unknown:
            raise ValueError(f"evidence must be of {', '.join(TIERS)}, got {unknown[0]!r}")
        strange = [axis for axis in self.placement if axis not in self.plan.sizes]
        if strange:
            raise ValueError(f"placement names axis {strange[0]}, the mesh has {', '.join(self.plan.sizes)}")
        for leaf in self.leaves():
            leaf.check(self.plan.sizes)
        object.__setattr__(self, "fingerprint", self.fingerprint or self.plan.fingerprint)

    def leaves(self) -> Iterator[LeafSpec]:
        """Every array: parameters, optimizer state, batch."""
        yield from self.parameters
        yield from self.optimizer
        yield from self.batch

    @property
    def stale(self) -> bool:
        """Whether the plan was changed after its evidence was gathered (edited by hand, say)."""
        return self.fingerprint != self.plan.fingerprint

    def compared(self, figure: str) -> tuple[tuple[str, float], ...]:
        """What each tier said of `total_bytes` or `step_time_s`, the cheapest tier first."""
        found = []
        for tier in TIERS:
            value = self.evidence.get(tier, {}).get(figure)
            value = value.get("value") if isinstance(value, Mapping) else value
            if value is not None:
                found.append((tier, float(value)))
        return tuple(found)


def leaf_specs(
    table: Table, rules: Rules, axes: Sequence[str]
) -> tuple[tuple[LeafSpec, ...], tuple[LeafSpec, ...], tuple[LeafSpec, ...]]:
    """Where the parameters, the optimizer's state and the batch of a traced program lie.

    They follow `rules.storage`, `rules.storage_of_optimizer` and `rules.input`.

    Args:
        axes: the mesh's axes, in mesh order.
    """
    return (
        tuple(_leaf_spec(table, leaf, rules.storage, axes) for leaf in table.parameters),
        tuple(_leaf_spec(table, leaf, rules.storage_of_optimizer, axes) for leaf in table.optimizer),
        tuple(_leaf_spec(table, leaf, rules.input, axes) for leaf in table.batch),
    )


def _leaf_spec(table: Table, leaf: Leaf, rules: Rules, axes: Sequence[str]) -> LeafSpec:
    names = [dim.name for dim in table.dims]
    return LeafSpec(
        path=leaf.path,
        shape=tuple(table.elements(sequence) for sequence in leaf.shape),
        dtype=leaf.dtype,
        itemsize=leaf.itemsize,
        dims=tuple(tuple(names[d] for d in sequence) for sequence in leaf.shape),
        spec=rules.spec(leaf.shape, names, axes),
    )


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide an answer; imports none of them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
