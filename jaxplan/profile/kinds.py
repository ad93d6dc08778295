"""What an operation of a trace is: compute of which kind, a collective along which mesh axes, a copy, a loop.

The HLO tells exactly; where it does not know an operation (no HLO, a kernel in a command buffer), the profiler's
category or the kernel's name does. Names of ledger entries are those of `jaxplan.compile.timeline`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from jaxplan.compile.collective import Collective
from jaxplan.compile.collective_form import KINDS, base_kind
from jaxplan.compile.collectives import collectives
from jaxplan.compile.hlo import HloError, Instruction, Module
from jaxplan.compile.hlo_cost import FlopCounter
from jaxplan.compile.memory_traffic import memory_traffic
from jaxplan.compile.op_cost import kind_of
from jaxplan.compile.timeline import HOST_MEMORY_SPACE
from jaxplan.profile.program import on_devices

LOOP = "loop control"
COPIES, HOST_TRANSFERS = "exposed copies", "exposed host transfers"
_CONTROL = frozenset(("while", "conditional", "call"))
_INSTRUCTION = re.compile(r"(.*?)((?:\.\d+)*)$")
_COLLECTIVE_NAMES = "|".join(sorted(KINDS, key=len, reverse=True))
# What profilers and libraries call things, in the order of trust: XLA's categories on TPUs (openxla/xla,
# hlo_category statistic), kernels of NCCL, cuBLAS, CUTLASS, cuDNN and hipBLASLt on GPUs.
_BY_NAME = (
    (re.compile(rf"\b({_COLLECTIVE_NAMES})", re.IGNORECASE), "collective"),
    (re.compile(r"nccl\w*?_?(AllGather|AllReduce|ReduceScatter|AllToAll|SendRecv|Broadcast)"), "nccl"),
    (re.compile(r"\b(host )?(send|recv)\b|Memcpy(H2D|D2H)|MemcpyHto|MemcpyDto", re.IGNORECASE), HOST_TRANSFERS),
    (re.compile(r"\b(copy|slice)-(start|done)\b|Memcpy|memset", re.IGNORECASE), COPIES),
    (re.compile(r"^(while|conditional|call)(\.\d+)*$"), LOOP),
    (re.compile(r"fmha|flash|attention|sdpa|splash", re.IGNORECASE), "attention"),
    (re.compile(r"gemm|cutlass|cublas|xmma|nvjet|^Cijk_|convolution|matmul|\bdot\b", re.IGNORECASE), "matmul"),
    (re.compile(r"custom-call", re.IGNORECASE), "kernel"),
)
_ANY_COLLECTIVE = re.compile(r"^(nccl|rccl)")       # RCCL's `ncclDevKernel_Generic` does whatever it is told
_NCCL = {
    "AllGather": "all-gather",
    "AllReduce": "all-reduce",
    "ReduceScatter": "reduce-scatter",
    "AllToAll": "all-to-all",
    "SendRecv": "collective-permute",
    "Broadcast": "collective-broadcast",
}


class Class(IntEnum):
    """Who an instant belongs to where several things go on: the smallest."""

    COMPUTE = 0
    COLLECTIVE = 1
    COPY = 2
    LOOP = 3


@dataclass(frozen=True)
class Kind:
    """What an operation is.

    Attributes:
        entry: of the ledger (`matmul`, `exposed fsdp`).
        kind: `matmul`, `all-gather`, `copies`, ...
        axes: of a collective, where they are known.
        begins: whether a collective's span begins here: it is counted once, not again where it is awaited.
        instruction: in the HLO, where it is known.
        collective: its record.
        recomputed: whether it does again what a rematerialization policy did not keep.
    """

    entry: str
    kind: str
    group: Class
    axes: tuple[str, ...] = ()
    begins: bool = False
    instruction: Instruction | None = None
    collective: Collective | None = None
    recomputed: bool = False

    @property
    def lane(self) -> str:
        """The row of a timeline that it stands on."""
        if self.group is Class.COLLECTIVE:
            return self.entry.removeprefix("exposed ")
        return {COPIES: "copies", HOST_TRANSFERS: "host"}.get(self.entry, "compute")


class Kinds:
    """The kinds of the operations of one program.

    Attributes:
        notes: what could not be told.
    """

    def __init__(self, module: Module | None, axes: Mapping[str, int] | None) -> None:
        self.notes: list[str] = []
        self.axes = dict(axes or {})
        self.module = module
        self._instructions: dict[str, Instruction] = {}
        self._collectives: dict[str, tuple[Collective, bool]] = {}
        if module is not None:
            self._instructions = {one.name: one for one in module.instructions()}
            self._flops = FlopCounter(module)
            self._find_collectives(module)

    def _find_collectives(self, module: Module) -> None:
        if not self.axes:
            if any(base_kind(one.opcode) in KINDS for one in module.instructions()):
                self.notes.append("the mesh is not known (--mesh data=4,tensor=2): collectives are told apart by kind")
            return
        try:
            found = collectives(on_devices(module, self.axes), self.axes)
        except HloError as error:
            mesh = ",".join(f"{name}={size}" for name, size in self.axes.items())
            self.notes.append(f"collectives do not fit the mesh {mesh} ({error}): they are told apart by kind only")
            self.axes = {}
            return
        for one in found:
            schedule = module.computation(one.computation).instructions
            self._collectives.setdefault(schedule[one.place].name, (one, True))
            self._collectives.setdefault(one.name, (one, True))
            if one.end is not None:
                self._collectives.setdefault(schedule[one.end].name, (one, False))

    def instruction(self, name: str) -> Instruction | None:
        """The instruction that a trace's name means: of asynchronous ones traces may leave out the `-start`."""
        found = self._instructions.get(name)
        if found is None:
            match = _INSTRUCTION.match(name)
            assert match is not None
            found = self._instructions.get(f"{match[1]}-start{match[2]}")
        return found

    def of(self, name: str, hint: str = "", named: bool = True) -> Kind:
        """The kind of an operation.

        Args:
            hint: the profiler's category, or the kernel's name.
            named: whether `name` is an instruction's.
        """
        instruction = self.instruction(name) if named else None
        return self._told(instruction) if instruction is not None else by_name(name, hint)

    def _told(self, instruction: Instruction) -> Kind:
        flops = self._flops.of_instruction(instruction)
        found = kind_of(flops) if flops is not None else "memory-bound"
        computes = instruction.opcode == "fusion" and found in ("matmul", "attention")
        if instruction.name in self._collectives and not computes:
            one, begins = self._collectives[instruction.name]
            entry = f"exposed {'+'.join(one.axes)}"
            return Kind(entry, one.kind, Class.COLLECTIVE, one.axes, begins, instruction, one)
        opcode = instruction.opcode
        if opcode in _CONTROL:
            return Kind(LOOP, opcode, Class.LOOP, instruction=instruction)
        kind = base_kind(opcode).removesuffix("-done")
        if kind in KINDS:
            begins = not opcode.endswith("-done")
            return Kind(f"exposed {kind}", kind, Class.COLLECTIVE, begins=begins, instruction=instruction)
        if opcode.endswith(("-start", "-done", "-update")) and kind in ("copy", "slice", "async", "send", "recv"):
            host = any(shape.memory_space == HOST_MEMORY_SPACE for shape in instruction.shapes)
            entry = HOST_TRANSFERS if host or kind in ("send", "recv") else COPIES
            return Kind(entry, entry.removeprefix("exposed "), Class.COPY, instruction=instruction)
        recomputed = "rematted_computation" in instruction.op_name
        return Kind(found, found, Class.COMPUTE, instruction=instruction, recomputed=recomputed)

    def flops(self, instruction: Instruction) -> float:
        """Of one execution."""
        found = self._flops.of_instruction(instruction)
        return found.total if found is not None else 0.0

    def nbytes(self, instruction: Instruction) -> int:
        """Bytes that one execution reads and writes."""
        return memory_traffic(self.module, instruction) if self.module is not None else 0


def by_name(name: str, hint: str) -> Kind:
    """The kind that names speak for, `memory-bound` where they say nothing else."""
    for said in (hint, name):
        for pattern, entry in _BY_NAME:
            match = pattern.search(said)
            if match is None:
                continue
            if entry in ("collective", "nccl"):
                kind = match[1].lower() if entry == "collective" else _NCCL[match[1]]
                begins = "done" not in name
                return Kind(f"exposed {kind}", kind, Class.COLLECTIVE, begins=begins)
            if entry in (COPIES, HOST_TRANSFERS):
                return Kind(entry, entry.removeprefix("exposed "), Class.COPY)
            return Kind(entry, entry, Class.LOOP if entry == LOOP else Class.COMPUTE)
    if _ANY_COLLECTIVE.search(hint) or _ANY_COLLECTIVE.search(name):
        return Kind("exposed collectives", "collective", Class.COLLECTIVE, begins=True)
    return Kind("memory-bound", "memory-bound", Class.COMPUTE)
