"""A step time from a compiled schedule.

The schedule is walked once: computing instructions take one after the other; a collective is issued where
the schedule issues it, runs on the links of its mesh axes behind whatever runs there already, and is
awaited where the schedule awaits it. What the wait takes is exposed communication. A loop is its body times
its trips.

    low    compute by a roofline at peak rates, communication at the links' own rates, hidden
           perfectly: the larger of the two
    value  the walk, at the rates that measurements reached where the catalogue has them; on GPUs what computes while
           a collective runs is slowed by it
    high   the sum, nothing hidden, compute at the slow end of `op_cost`

Not modeled: pipelining across trips of a loop, stragglers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxplan.compile.collectives import Collective, collectives
from jaxplan.compile.events import COMPUTE, Event, Node
from jaxplan.compile.hlo import Computation, Instruction, Module
from jaxplan.compile.host_cost import HostCosts
from jaxplan.compile.megascale import Slices
from jaxplan.compile.memory_traffic import FREE
from jaxplan.compile.op_cost import OpCosts
from jaxplan.compile.trip_count import trip_count
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import Placement
from jaxplan.machine.reached import slowed_by_collectives
from jaxplan.machine.topology import Machine

HOST_MEMORY_SPACE = 5
# Kinds without a formula of their own run at the rates of their nearest relative.
LIKE = {"ragged-all-to-all": "all-to-all", "collective-broadcast": "all-gather"}
_COPIES, _HOST = "copies", "host transfers"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a ledger."""

    name: str
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """The time of one execution of a module on every device of a machine.

    Attributes:
        value_s, low_s, high_s: as the module's text says; low_s <= value_s <= high_s.
        ledger: compute by kind and exposed communication by axes; adds up to value_s.
        communication: every collective's time by kind and axes, hidden or not.
        host_bytes: bytes copied between host and device; their time is counted where the chip's link to its host is
            known.
        uncovered: custom calls whose work is not known -> how many of them.
        unknown_trip_counts: loops counted as one trip; with any, all times are lower bounds.
        step: what runs when.
    """

    value_s: float
    low_s: float
    high_s: float
    ledger: tuple[Entry, ...]
    communication: tuple[Entry, ...] = ()
    host_bytes: int = 0
    uncovered: Mapping[str, int] = field(default_factory=dict)
    unknown_trip_counts: int = 0
    step: Node = field(default_factory=lambda: Node("step"), compare=False, repr=False)

    def __post_init__(self) -> None:
        total = sum(entry.seconds for entry in self.ledger)
        if abs(total - self.value_s) > 1e-9 * max(1.0, self.value_s):
            raise ValueError(f"the ledger must add up to value_s: got {total}, expected {self.value_s}")
        if not self.low_s <= self.value_s * (1 + 1e-9) or not self.value_s <= self.high_s * (1 + 1e-9):
            raise ValueError(
                f"expected low <= value <= high, got {self.low_s}, {self.value_s}, {self.high_s}"
            )


def timeline(module: Module, machine: Machine, placement: Placement) -> StepTime:
    """The step time that the schedule of `module` amounts to.

    Args:
        module: optimized, scheduled HLO for `machine`.
        placement: of the mesh that it was compiled for.
    """
    walk = _Walk(module, machine, placement)
    span = walk.run(module.entry)
    span.launch(walk.costs.launch_s)
    ledger = tuple(Entry(name, time) for name, time in sorted(span.ledger.items(), key=lambda item: -item[1]))
    total = sum(entry.seconds for entry in ledger)
    communication = sum(span.communication.values())
    busiest = max(span.links_low.values(), default=0.0)
    return StepTime(
        value_s=total,
        low_s=max(span.compute_low, busiest),
        high_s=max(total, span.compute_high + communication + span.copies),
        ledger=ledger,
        communication=tuple(
            Entry(name, time) for name, time in sorted(span.communication.items(), key=lambda item: -item[1])
        ),
        host_bytes=span.host_bytes,
        uncovered=dict(walk.costs.uncovered),
        unknown_trip_counts=walk.unknown_trip_counts,
        step=span.node,
    )


@dataclass
class _Span:
    """What one execution of a computation takes. Sums over parts; `ledger` adds up to its duration."""

    node: Node
    ledger: dict[str, float] = field(default_factory=dict)
    communication: dict[str, float] = field(default_factory=dict)
    links_low: dict[str, float] = field(default_factory=dict)
    compute_low: float = 0.0
    compute_high: float = 0.0
    copies: float = 0.0
    host_bytes: int = 0

    def add(self, other: _Span, times: int) -> None:
        """Run `other` that many times after this."""
        for mine, its in (
            (self.ledger, other.ledger),
            (self.communication, other.communication),
            (self.links_low, other.links_low),
        ):
            for name, value in its.items():
                mine[name] = mine.get(name, 0.0) + times * value
        self.compute_low += times * other.compute_low
        self.compute_high += times * other.compute_high
        self.copies += times * other.copies
        self.host_bytes += times * other.host_bytes

    def spend(self, name: str, value: float) -> None:
        """Enter a line of the ledger."""
        if value > 0:
            self.ledger[name] = self.ledger.get(name, 0.0) + value

    def launch(self, value: float) -> None:
        """Add what starting the program takes."""
        if value > 0:
            self.spend("launch", value)
            self.node.events.append(Event(COMPUTE, self.node.duration_s, value, "launch", "launch"))
            self.node.duration_s += value

    def transfer(self, event: Event, wait: str) -> _Pending:
        """Enter a transfer, whose end somebody will wait for."""
        self.node.events.append(event)
        return _Pending(event.start_s + event.duration_s, wait, len(self.node.events) - 1)

    @property
    def duration(self) -> float:
        return sum(self.ledger.values())


def _touches_host(instruction: Instruction) -> bool:
    return any(shape.memory_space == HOST_MEMORY_SPACE for shape in instruction.shapes)


def _words(one: Instruction | Collective) -> str:
    """What an operation is called: the end of its path in the program, or its name in the HLO."""
    return "/".join(one.op_name.split("/")[-2:]) or one.name


@dataclass
class _Pending:
    """A transfer under way: when it ends, what its wait is called, and which event of its node it is."""

    finish: float
    name: str
    event: int


class _Walk:
    def __init__(self, module: Module, machine: Machine, placement: Placement) -> None:
        self._module, self._machine, self._placement = module, machine, placement
        self.costs = HostCosts(module, machine) if machine.kind == "cpu" else OpCosts(module, machine)
        self.unknown_trip_counts = 0
        self._spans: dict[str, _Span] = {}
        self._issued: dict[str, dict[int, dict[str, list[Collective]]]] = {}
        for one in collectives(module, dict(placement.sizes), slices=Slices.of(placement)):
            at = self._issued.setdefault(one.computation, {}).setdefault(one.place, {})
            if one not in at.setdefault(one.name, []):
                at[one.name].append(one)

    def run(self, computation: Computation) -> _Span:
        """The span of one execution; kept, because loops share bodies."""
        if computation.name not in self._spans:
            self._spans[computation.name] = self._walk(computation)
        return self._spans[computation.name]

    def _walk(self, computation: Computation) -> _Span:
        span, now = _Span(Node(computation.name)), 0.0
        free: dict[str, float] = {}
        awaited: dict[int, list[_Pending]] = {}
        issued = self._issued.get(computation.name, {})
        copies: dict[str, _Pending] = {}
        for place, instruction in enumerate(computation.instructions):
            waits = awaited.pop(place, ())
            for pending in waits:
                now = self._wait(span, now, pending)
            for one in (one for found in issued.get(place, {}).values() for one in found):
                pending = self._issue(span, now, free, one)
                if one.end is None:
                    now = self._wait(span, now, pending)
                else:
                    awaited.setdefault(one.end, []).append(pending)
            communicates = place in issued or bool(waits)
            now = self._step(span, now, free, copies, instruction, communicates)
        span.node.duration_s = now
        return span

    def _step(
        self,
        span: _Span,
        now: float,
        free: dict[str, float],
        copies: dict[str, _Pending],
        instruction: Instruction,
        communicates: bool,
    ) -> float:
        """Let one instruction take its time; returns the time after it."""
        opcode = instruction.opcode
        if opcode in ("while", "conditional", "call"):
            inner, times = self._nested(instruction)
            span.add(inner, times)
            span.node.children.append((now, times, dataclasses.replace(inner.node, name=_words(instruction))))
            return now + times * inner.duration
        if opcode in ("copy-start", "slice-start") or (opcode.endswith("-start") and _touches_host(instruction)):
            self._start_copy(span, now, free, copies, instruction)
            return now
        if opcode.endswith("-done") and (pending := copies.pop("".join(instruction.operand_names[:1]), None)):
            return self._wait(span, now, pending)
        if opcode in FREE or opcode.endswith(("-start", "-done", "-update")):
            return now
        if communicates and opcode != "fusion":
            return now  # the collective itself: its time is on the links
        cost = self.costs.of(instruction)
        if cost is None or (communicates and cost.kind == "memory-bound"):
            return now
        slowed = self._slowed(now, cost.seconds, free)
        span.spend(cost.kind, cost.seconds)
        span.spend("slowed by collectives", slowed)
        span.compute_low += cost.low_s
        span.compute_high += cost.high_s
        span.node.events.append(Event(COMPUTE, now, cost.seconds + slowed, _words(instruction), cost.kind))
        return now + cost.seconds + slowed

    def _slowed(self, now: float, seconds: float, free: dict[str, float]) -> float:
        """How much longer work of so many seconds takes because collectives run at the same time."""
        slower = slowed_by_collectives(self._machine)
        until = max((end for name, end in free.items() if name not in (_COPIES, _HOST)), default=now)
        return slower * min(seconds, max(0.0, until - now) / (1 + slower))

    def _nested(self, instruction: Instruction) -> tuple[_Span, int]:
        if instruction.opcode == "while":
            trips = trip_count(self._module, instruction)
            self.unknown_trip_counts += trips.count is None
            body = self.run(self._module.callee(instruction, "body"))
            return body, trips.count if trips.count is not None else 1
        if instruction.opcode == "conditional":
            branches = [self.run(self._module.computation(name)) for name in instruction.called["branches"]]
            return max(branches, key=lambda branch: branch.duration), 1
        return self.run(self._module.callee(instruction, "to_apply", "calls")), 1

    def _issue(self, span: _Span, now: float, free: dict[str, float], one: Collective) -> _Pending:
        """Put a collective on its links, behind what runs there already."""
        links = self._placement.links(one.axes, one.part)
        if links.size != one.group_size:
            links = dataclasses.replace(links, size=one.group_size)
        kind, axes = LIKE.get(one.kind, one.kind), "+".join(one.axes)
        time = float(seconds(kind, one.nbytes, links.achieved()))
        low = float(seconds(kind, one.nbytes, links))
        begin = now
        for resource in self._resources(one):
            begin = max(begin, free.get(resource, 0.0))
            span.links_low[resource] = span.links_low.get(resource, 0.0) + low
        free.update(dict.fromkeys(self._resources(one), begin + time))
        name = f"{one.kind} {axes}"
        span.communication[name] = span.communication.get(name, 0.0) + time
        return span.transfer(Event(axes, begin, time, _words(one), one.kind), f"exposed {axes}")

    def _resources(self, one: Collective) -> tuple[str, ...]:
        """What a collective keeps busy: both directions of its axes' links on a torus (a permute: one of
        them).

        GPUs run collectives of all axes through one stream and the same ports.
        """
        if self._machine.kind != "tpu":
            return ("ports",)
        if one.part == "network":
            return ("network",)     # what crosses slices goes through the same hosts
        directions = (one.direction,) if one.direction else (1, -1)
        return tuple(f"{axis} {direction:+d}" for axis in one.axes for direction in directions)

    def _start_copy(
        self,
        span: _Span,
        now: float,
        free: dict[str, float],
        copies: dict[str, _Pending],
        instruction: Instruction,
    ) -> None:
        """A prefetch into on-chip memory, or a transfer to or from the host's, runs beside compute."""
        if _touches_host(instruction):
            self._start_transfer(span, now, free, copies, instruction)
            return
        moved = instruction.shapes[1 if instruction.opcode == "slice-start" else 0].nbytes
        time = moved / self._machine.device_hbm_bytes_per_s
        span.copies += time
        free[_COPIES] = max(now, free.get(_COPIES, 0.0)) + time
        event = Event(_COPIES, free[_COPIES] - time, time, _words(instruction), _COPIES)
        copies[instruction.name] = span.transfer(event, f"exposed {_COPIES}")

    def _start_transfer(
        self,
        span: _Span,
        now: float,
        free: dict[str, float],
        copies: dict[str, _Pending],
        instruction: Instruction,
    ) -> None:
        """A transfer moves the array on the device's side: of a slice the host has the whole stack."""
        moved = max((s.nbytes for s in instruction.shapes if s.memory_space != HOST_MEMORY_SPACE), default=0)
        span.host_bytes += moved
        rate = self._machine.device_host_bytes_per_s
        if rate is None:
            return
        time = moved / rate
        span.copies += time
        span.links_low[_HOST] = span.links_low.get(_HOST, 0.0) + time
        free[_HOST] = max(now, free.get(_HOST, 0.0)) + time
        event = Event(_HOST, free[_HOST] - time, time, _words(instruction), _HOST)
        copies[instruction.name] = span.transfer(event, f"exposed {_HOST}")

    @staticmethod
    def _wait(span: _Span, now: float, pending: _Pending) -> float:
        span.spend(pending.name, pending.finish - now)
        span.node.expose(pending.event, pending.finish - now)
        return max(now, pending.finish)
