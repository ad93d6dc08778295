"""Reading optimized, scheduled HLO text as the compilers print it: a module of computations of instructions.

The grammar is XLA's text format as `jax.stages.Compiled.as_text()` prints it (openxla/xla,
hlo/ir/hlo_instruction.cc): one instruction a line, computations closed by a brace in the first column.
Lines are cut coarsely (hlo_instruction.py reads the rest on demand), so that 20 MB take a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxplan.compile.hlo_instruction import BITS, Computation, HloError, Instruction, Shape

__all__ = ["BITS", "Computation", "HloError", "Instruction", "Module", "Shape", "parse"]

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r" ([a-z][a-z0-9-]*)\(")


@dataclass(frozen=True)
class Module:
    """A parsed module.

    Attributes:
        header: the first line.
        computations: by name, in the order of the text.
        entry: where execution starts.
        preamble: the lines before the first computation: tables of files and stack frames, in newer texts.
    """

    header: str
    computations: dict[str, Computation]
    entry: Computation
    preamble: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The module's name (`jit_step`)."""
        return self.header.split()[1].rstrip(",")

    @cached_property
    def devices(self) -> int:
        """Devices that run it together: partitions times replicas (1 where the header names neither)."""
        counts = [re.search(rf"\b{key}=(\d+)", self.header) for key in ("num_partitions", "replica_count")]
        return math.prod(int(match[1]) for match in counts if match)

    @cached_property
    def is_scheduled(self) -> bool:
        """Whether the order of instructions is the order of execution."""
        return "is_scheduled=true" in self.header

    @cached_property
    def backend(self) -> str:
        """Which compiler wrote it, `tpu`, `gpu` or `cpu`, by marks that only that one leaves."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                text = instruction.attribute_text
                if ":T(" in instruction.type_text or '"flag_configs"' in text:
                    return "tpu"
                if '"operation_queue_id"' in text or '"force_earliest_schedule"' in text:
                    return "gpu"
        return "cpu"

    def computation(self, name: str) -> Computation:
        """The computation of that name; HloError where there is none."""
        try:
            return self.computations[name]
        except KeyError:
            raise HloError(f"the module has no computation {name!r}: is the text cut off?") from None

    def callee(self, instruction: Instruction, *roles: str) -> Computation:
        """The one computation that `instruction` calls in the first of `roles` that it has."""
        for role in roles:
            if role in instruction.called:
                return self.computation(instruction.called[role][0])
        raise HloError(
            f"{instruction.name} ({instruction.opcode}) calls nothing: expected one of {', '.join(roles)}"
        )

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation, each once."""
        for computation in self.computations.values():
            yield from computation.instructions


def parse(text: str) -> Module:
    """Read the text of an HLO module.

    Raises:
        HloError: no module, a computation that does not end, a line that is no instruction, or no entry.
    """
    lines = text.split("\n")
    if not lines[0].startswith("HloModule"):
        raise HloError(
            f"not the text of an HLO module: got {lines[0][:60]!r}, expected a line 'HloModule NAME, ...'"
        )
    computations = dict(_computations(lines))
    entries = [computation for computation in computations.values() if computation.is_entry]
    if len(entries) != 1:
        raise HloError(
            f"the module has {len(entries)} entry computations, expected one: is the text cut off?"
        )
    first = next(i for i, line in enumerate(lines) if line.endswith("{") and _COMPUTATION.match(line))
    return Module(lines[0], computations, entries[0], tuple(lines[1:first]))


def _computations(lines: list[str]) -> Iterator[tuple[str, Computation]]:
    computation: Computation | None = None
    pending = ""
    for number, line in enumerate(lines[1:], start=2):
        if computation is None:
            if line and line[0] not in " }":
                match = _COMPUTATION.match(line)
                computation = Computation(match[2], bool(match[1])) if match else None
        elif line.startswith("}") and not line.startswith("}}"):
            _finish(pending, computation, number)
            if computation.root is None:
                raise HloError(f"computation {computation.name} has no root (line {number})")
            yield computation.name, computation
            computation, pending = None, ""
        elif _INSTRUCTION.match(line):
            _finish(pending, computation, number)
            pending = line
        else:  # kernel metadata of a Pallas call runs over several lines
            pending = f"{pending} {line}"
    if computation is not None:
        raise HloError(f"computation {computation.name} does not end: the text is cut off")


def _finish(line: str, computation: Computation, number: int) -> None:
    """Add the instruction in `line` (which ended before line `number`) to `computation`."""
    if not line:
        return
    head = _INSTRUCTION.match(line)
    opcode = _OPCODE.search(line, head.end() - 1) if head else None
    if head is None or opcode is None:
        raise HloError(
            f"not an instruction before line {number}, in {computation.name}: {line.strip()[:80]!r}"
        )
    start = opcode.end() - 1
    end = _closing(line, start)
    if end < 0:
        raise HloError(f"operands of {head[2]} do not end (before line {number}): is the text cut off?")
    instruction = Instruction(
        head[2],
        bool(head[1]),
        line[head.end() : opcode.start()],
        opcode[1],
        line[start + 1 : end],
        line[end + 1 :],
        computation,
    )
    computation.instructions.append(instruction)
    computation.by_name[instruction.name] = instruction
    if instruction.is_root:
        computation.root = instruction


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`; -1 where there is none."""
    end = text.find(")", start)
    if end < 0 or (text.find("(", start + 1, end) < 0 and text.find('"', start + 1, end) < 0):
        return end
    depth, quoted = 0, False
    for index in range(start, len(text)):
        character = text[index]
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return index
    return -1
