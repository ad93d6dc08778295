"""What fills a device's memory at the peak, buffer by buffer, from the buffer assignment that XLA dumps.

Compile with `compiler_options={"xla_dump_to": FOLDER, "xla_dump_hlo_as_proto": True}`: the file
`*after_optimizations.hlo.pb` holds the module and its buffer assignment on CPU, GPU and TPU alike
(openxla/xla, xla/service/hlo.proto: HloProto, BufferAssignmentProto, HeapSimulatorTrace; field numbers
below are theirs).

Allocations are what the program takes. Temporaries share one allocation; the trace of the heap simulator
tells which of them are alive when it is fullest. What the allocation holds beyond them is gaps between
buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxplan.compile.hlo import HloError
from jaxplan.compile.wire import fields, integers, text

HBM = 0  # a buffer's color is its memory space

PARAMETER, OUTPUT, CONSTANT, TEMPORARY = "parameter", "output", "constant", "temporary"
_ALLOC, _FREE, _SHARE = 0, 1, 2
Trace = list[tuple[int, int, int]]  # events of one heap: (kind, buffer, canonical buffer)

_ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128",
    19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz",
    25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer alive at the peak.

    Attributes:
        name: the instruction that defines it. op_name: the JAX operation or argument that it comes from.
        shape: as HLO writes it (`bf16[4,512,512]`). nbytes: with the padding of its layout.
        kind: `parameter`, `output` (not aliased to a parameter), `constant` or `temporary`.
    """

    name: str
    op_name: str
    shape: str
    nbytes: int
    kind: str


@dataclass(frozen=True)
class Peak:
    """One device's memory of one memory space.

    Attributes:
        allocated_bytes: `parameter`, `output`, `constant`, `temporary` -> bytes that the program takes.
        buffers: alive at the peak, largest first.
        gap_bytes: of the temporaries' allocation, what no live buffer fills.
    """

    allocated_bytes: dict[str, int]
    buffers: tuple[Buffer, ...]
    gap_bytes: int

    def __post_init__(self) -> None:
        listed = sum(buffer.nbytes for buffer in self.buffers) + self.gap_bytes
        if listed != self.total_bytes:
            raise ValueError(
                f"buffers and gaps must add up to the allocations: got {listed}, expected {self.total_bytes}"
            )

    @property
    def total_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(self.allocated_bytes.values())


@dataclass(slots=True)
class _Logical:
    nbytes: int = 0
    instruction: int = 0
    index: tuple[int, ...] = ()


@dataclass(slots=True)
class _Allocation:
    nbytes: int = 0
    color: int = 0
    kind: str = TEMPORARY
    thread_local: bool = False
    assigned: tuple[int, ...] = ()


def read_peak(proto: bytes, memory_space: int = HBM) -> Peak:
    """The peak of one memory space from a dumped HloProto.

    Args:
        proto: contents of `*after_optimizations.hlo.pb`.
        memory_space: XLA's number; 0 is HBM, 1 a TPU's VMEM.

    Raises:
        HloError: not such a file, or one without a buffer assignment.
    """
    top = dict(fields(memoryview(proto)))
    assignment = top.get(3)
    if isinstance(assignment, int) or assignment is None or not len(assignment):
        raise HloError("the HloProto holds no buffer assignment: is it the dump after optimizations?")
    logical: dict[int, _Logical] = {}
    allocations: list[_Allocation] = []
    traces: list[Trace] = []
    for number, value in fields(assignment):
        if number == 1:
            identity, buffer = _logical(value)
            logical[identity] = buffer
        elif number == 3:
            allocations.append(_allocation(value))
        elif number == 4:
            traces.append(_trace(value))
    chosen = [one for one in allocations if one.color == memory_space and not one.thread_local and one.nbytes]
    return _peak(top.get(1, 0), chosen, logical, traces)


def _peak(
    module: int | memoryview,
    allocations: Iterable[_Allocation],
    logical: dict[int, _Logical],
    traces: list[Trace],
) -> Peak:
    allocated: dict[str, int] = {}
    found: list[tuple[_Logical, int, str]] = []
    gaps = 0
    for allocation in allocations:
        allocated[allocation.kind] = allocated.get(allocation.kind, 0) + allocation.nbytes
        if allocation.kind == TEMPORARY:
            alive = _alive(allocation, logical, traces)
            found += [(logical[one], logical[one].nbytes, TEMPORARY) for one in alive]
            gaps += allocation.nbytes - sum(logical[one].nbytes for one in alive)
        else:
            owner = logical[allocation.assigned[0]] if allocation.assigned else _Logical()
            found.append((owner, allocation.nbytes, allocation.kind))
    names = _instructions(module, {one.instruction for one, _, _ in found})
    buffers = [
        Buffer(*_described(names.get(one.instruction), one.index), nbytes, kind)
        for one, nbytes, kind in found
    ]
    return Peak(allocated, tuple(sorted(buffers, key=lambda one: -one.nbytes)), gaps)


def _alive(allocation: _Allocation, logical: dict[int, _Logical], traces: list[Trace]) -> set[int]:
    """Buffers alive when an allocation is fullest; without a trace of it, its largest.

    Traces are matched by the buffers they place: the allocation index that they carry is from before XLA
    merges and renumbers allocations.
    """
    members = set(allocation.assigned)
    alive: set[int] = set()
    for events in traces:
        if any(buffer in members for _, buffer, _ in events[:1]):
            alive |= _alive_at_peak(logical, events)
    if not alive and members:
        alive = {max(members, key=lambda one: logical[one].nbytes)}
    return alive


def _alive_at_peak(logical: dict[int, _Logical], events: Trace) -> set[int]:
    """Buffers that hold memory of their own when the sum of a heap is largest."""
    owner: dict[int, int] = {}
    sharers: dict[int, int] = {}
    total = highest = 0
    best: set[int] = set()
    for kind, buffer, canonical in events:
        if kind == _FREE:
            root = owner.pop(buffer, buffer)
            sharers[root] = sharers.get(root, 1) - 1
            if sharers[root] <= 0:
                sharers.pop(root)
                total -= logical[root].nbytes
            continue
        root = owner.get(canonical, canonical) if kind == _SHARE else buffer
        owner[buffer] = root
        if root not in sharers:
            total += logical[root].nbytes
        sharers[root] = sharers.get(root, 0) + 1
        if total > highest:
            highest, best = total, set(sharers)
    return best


def _logical(value: int | memoryview) -> tuple[int, _Logical]:
    buffer, identity = _Logical(), 0
    for number, field in _message(value):
        if number == 1 and isinstance(field, int):
            identity = field
        elif number == 2 and isinstance(field, int):
            buffer.nbytes = field
        elif number == 3:
            for inner, part in _message(field):
                if inner == 4 and isinstance(part, int):
                    buffer.instruction = part
                elif inner == 3:
                    buffer.index += tuple(integers(part))
    return identity, buffer


def _allocation(value: int | memoryview) -> _Allocation:
    one = _Allocation()
    flags: set[int] = set()
    for number, field in _message(value):
        if number == 9:
            inner = dict(_message(field))
            identity = inner.get(1, 0)
            one.assigned += (identity if isinstance(identity, int) else 0,)
        elif isinstance(field, int):
            if number == 2:
                one.nbytes = field
            elif number == 8:
                one.color = field
            elif field:
                flags.add(number)
    one.thread_local = 3 in flags
    one.kind = PARAMETER if 5 in flags else CONSTANT if 12 in flags else OUTPUT if 7 in flags else TEMPORARY
    return one


def _trace(value: int | memoryview) -> Trace:
    events: Trace = []
    for number, field in _message(value):
        if number == 1:
            event = {inner: part for inner, part in _message(field) if isinstance(part, int)}
            events.append((event.get(1, _ALLOC), event.get(2, 0), event.get(5, 0)))
    return events


def _message(value: int | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    if isinstance(value, int):
        raise HloError("a protocol buffer holds a number where a message was expected")
    return fields(value)


def _instructions(module: int | memoryview, wanted: set[int]) -> dict[int, dict[int, int | memoryview]]:
    """The fields of the wanted instructions, by id."""
    found: dict[int, dict[int, int | memoryview]] = {}
    for number, computation in _message(module):
        if number != 3:
            continue
        for inner, instruction in _message(computation):
            if inner == 2:
                parts = dict(_message(instruction))
                identity = parts.get(35, 0)
                if isinstance(identity, int) and identity in wanted:
                    found[identity] = parts
    return found


def _described(
    instruction: dict[int, int | memoryview] | None, index: tuple[int, ...]
) -> tuple[str, str, str]:
    """(name, op_name, shape) of an instruction's array at a place of its result."""
    if instruction is None:
        return "", "", ""
    metadata = dict(_message(instruction[7])) if 7 in instruction else {}
    shape = instruction.get(3)
    for step in index:
        if shape is None:
            break
        parts = [part for number, part in _message(shape) if number == 4]
        shape = parts[step] if step < len(parts) else None
    op_name = text(metadata[2]) if 2 in metadata else ""
    return text(instruction.get(1, 0)), op_name, _shape(shape) if shape is not None else ""


def _shape(value: int | memoryview) -> str:
    element, dims = 0, []
    for number, field in _message(value):
        if number == 2 and isinstance(field, int):
            element = field
        elif number == 3:
            dims += integers(field)
    return f"{_ELEMENT_TYPES.get(element, f'type {element}')}[{','.join(map(str, dims))}]"
