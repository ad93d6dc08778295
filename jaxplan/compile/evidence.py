"""What a compiler said about a plan: plain data that survives JSON. No JAX here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxplan.compile.environment import Platform
from jaxplan.units import format_bytes

Tier = Literal["partitioned", "compiled"]
Status = Literal["ok", "does not fit", "failed", "crashed", "timed out", "killed", "cancelled", "not available"]


@dataclass(frozen=True)
class Memory:
    """One device's memory, as the compiler's own analysis gives it, in bytes.

    No figure is right everywhere: `peak_reported_bytes` (XLA's `peak_memory_in_bytes`) omits temporaries on
    the host and mixes memory spaces in small TPU programs; `temp_bytes` is up to 1.4 times what a TPU program
    takes (tiny decoder on v5e: the buffer assignment, the peak and the compiler's own out-of-memory text
    agree on 14.1 GiB where arguments and temporaries add up to 18.5; libtpu 0.0.42). Where values lie on the host, the
    reported peak can be that of the host's memory (16 layers on H100, 3,332 MiB offloaded: peak 3,652 MiB, arguments
    and temporaries 2,182; jaxlib 0.10.2).

    Attributes:
        host_bytes: host memory of offloaded values.
        total_allocation_bytes: what jax 0.12 adds; None before.
        assigned_bytes: of all allocations of the buffer assignment, where it was dumped.
        by_kind: parameters, optimizer, batch, outputs, temporaries; adds up to `total_bytes`.
    """

    platform: Platform
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_reported_bytes: int = 0
    host_bytes: int = 0
    total_allocation_bytes: int | None = None
    assigned_bytes: int | None = None
    by_kind: Mapping[str, int] = field(default_factory=dict)

    @property
    def sum_bytes(self) -> int:
        """Arguments, outputs that are not updated in place, temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @property
    def total_bytes(self) -> int:
        """The high-water mark.

        On the host the sum, on a TPU the buffer assignment (the reported peak without one), on a GPU the
        larger of sum and reported peak; the sum, too, where the peak may be of the host's memory.
        """
        if self.platform == "tpu" and (self.assigned_bytes or not self.host_bytes):
            return self.assigned_bytes or self.peak_reported_bytes
        if self.platform == "cpu" or self.host_bytes:
            return self.sum_bytes
        return max(self.sum_bytes, self.peak_reported_bytes)


@dataclass(frozen=True)
class Buffer:
    """One of the largest buffers alive at the peak: whose it is, its shape as text, its bytes."""

    name: str
    shape: str
    nbytes: int
    kind: str = ""


@dataclass(frozen=True)
class Traffic:
    """All collectives of one kind along the same mesh axes, one step, one device.

    Attributes:
        count: instructions in the program; `executions` counts them times their trip counts.
        nbytes: of all executions, by the conventions of `jaxplan.machine.collectives`.
        seconds: on the links that these axes use; None where the machine gives no placement.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    executions: int
    nbytes: float
    seconds: float | None = None


@dataclass(frozen=True)
class Diagnostic:
    """Something the compiler complained of (`compile.diagnostics`), in one sentence.

    Attributes:
        operation: that it is about. nbytes: of the tensor in question. source: `file:line` where it is known.
    """

    kind: str
    message: str
    operation: str = ""
    nbytes: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Schedule:
    """The step time that the compiled schedule amounts to, with its bounds; `ledger` adds up to `value_s`."""

    value_s: float
    low_s: float
    high_s: float
    ledger: tuple[tuple[str, float], ...] = ()
    communication: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Donation:
    """Whether the old state is really overwritten by the new one.

    Attributes:
        state_bytes, alias_bytes: of one device; they are equal where every leaf is updated in place.
        notes: what JAX said about donated arrays that it could not use.
    """

    state_bytes: int
    alias_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def fraction(self) -> float:
        return self.alias_bytes / self.state_bytes if self.state_bytes else 1.0


@dataclass(frozen=True)
class Evidence:
    """What is known about a plan from a compiler.

    Attributes:
        tier: `partitioned` (structure: arguments, collectives, diagnostics) or `compiled` (the target's own
            compiler).
        message: why the status is not `ok`, in a sentence; empty otherwise.
        compiler: what was asked, in words (`libtpu 0.0.42.1 for v5e:8x16`).
        seconds: wall clock of the whole job; `stage_seconds` by stage (build, lower, compile, read).
        capacity_bytes: what a program can have on one device.
        needed_bytes: what a compiler that refused the program said it needed.
        init_memory: of the program that makes the initial state; None where it was not compiled.
        flops: one device, one step, by kind; `uncovered` what could not be counted, by custom-call target.
        output_shardings: leaves whose sharding is not the requested one, as `path: got, expected`.
        notes: what was done differently than on the real machine.
        from_cache: whether this was known already.
        folder: of what the compile left beside (`compile.artifacts`), if it could.
    """

    tier: Tier
    status: Status
    platform: Platform
    message: str = ""
    compiler: str = ""
    seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    capacity_bytes: int = 0
    needed_bytes: int | None = None
    memory: Memory | None = None
    init_memory: Memory | None = None
    buffers: tuple[Buffer, ...] = ()
    flops: Mapping[str, float] = field(default_factory=dict)
    uncovered: Mapping[str, int] = field(default_factory=dict)
    unknown_trip_counts: int = 0
    traffic: tuple[Traffic, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    schedule: Schedule | None = None
    donation: Donation | None = None
    output_shardings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    partitioner: str = ""
    notes: tuple[str, ...] = ()
    from_cache: bool = field(default=False, compare=False)
    folder: Path | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def refuses(self) -> bool:
        """Whether it speaks against the plan; a compiler that cannot compile the program at all does not."""
        return self.status not in ("ok", "not available")

    @property
    def total_bytes(self) -> int | None:
        """One device's high-water mark, or what a refused program needed; None where nothing is known."""
        return self.memory.total_bytes if self.memory is not None else self.needed_bytes

    @property
    def step_time_s(self) -> float | None:
        return self.schedule.value_s if self.schedule is not None else None

    @property
    def step_time_low_s(self) -> float | None:
        """Everything overlapped perfectly."""
        return self.schedule.low_s if self.schedule is not None else None

    @property
    def step_time_high_s(self) -> float | None:
        """Nothing overlapped."""
        return self.schedule.high_s if self.schedule is not None else None

    @property
    def bottleneck(self) -> str:
        """The largest entry of the schedule's ledger; empty where there is none."""
        ledger = self.schedule.ledger if self.schedule is not None else ()
        return max(ledger, key=lambda entry: entry[1])[0] if ledger else ""

    @property
    def fits(self) -> bool | None:
        """Whether it fits the device; None where the compiler did not get so far.

        The host's temporaries do not transfer to the target (it widens bfloat16 and fuses otherwise): a
        partitioned plan is refused only for its arguments.
        """
        if self.status == "does not fit":
            return False
        if self.memory is None or not self.capacity_bytes:
            return None
        partitioned = self.tier == "partitioned"
        counted = self.memory.argument_bytes if partitioned else self.memory.total_bytes
        return counted <= self.capacity_bytes

    def untimed(self) -> Evidence:
        """The same without times of collectives: for a stand-in machine whose links are not the real ones."""
        return dataclasses.replace(
            self, traffic=tuple(dataclasses.replace(row, seconds=None) for row in self.traffic)
        )

    def judged(self) -> Evidence:
        """The same with the status that its memory calls for: a GPU's compiler never refuses a plan."""
        if self.status != "ok" or self.fits is not False:
            return self
        counted = "arguments alone take" if self.tier == "partitioned" else "it takes"
        memory = self.memory
        assert memory is not None
        needed = memory.argument_bytes if self.tier == "partitioned" else memory.total_bytes
        message = f"{counted} {format_bytes(needed)} of {format_bytes(self.capacity_bytes)} a device"
        return dataclasses.replace(self, status="does not fit", message=message, needed_bytes=needed)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the derived figures that readers want."""
        data = dataclasses.asdict(self)
        del data["from_cache"], data["folder"]
        return {**data, "total_bytes": self.total_bytes, "step_time_s": self.step_time_s, "fits": self.fits}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], from_cache: bool = False) -> Evidence:
        def several(key: str, make: Any) -> tuple:
            return tuple(make(**row) for row in data[key])

        def one(key: str, make: Any) -> Any:
            return None if data[key] is None else make(**data[key])

        known = {f.name for f in dataclasses.fields(cls)} - {"folder"}
        plain = {key: value for key, value in data.items() if key in known}
        return cls(**{
            **plain,
            "memory": one("memory", Memory),
            "init_memory": one("init_memory", Memory),
            "buffers": several("buffers", Buffer),
            "traffic": tuple(Traffic(**{**row, "axes": tuple(row["axes"])}) for row in data["traffic"]),
            "diagnostics": several("diagnostics", Diagnostic),
            "schedule": one("schedule", _schedule),
            "donation": one("donation", _donation),
            "output_shardings": tuple(data["output_shardings"]),
            "notes": tuple(data["notes"]),
            "from_cache": from_cache,
        })


def _schedule(**data: Any) -> Schedule:
    pairs = {key: tuple(map(tuple, data[key])) for key in ("ledger", "communication")}
    return Schedule(**{**data, **pairs})


def _donation(**data: Any) -> Donation:
    return Donation(**{**data, "notes": tuple(data["notes"])})
