"""FLOPs of a compiled module: every matmul wherever it hides, times how often its loop runs.

Counted are `dot`, `convolution` (a TPU's matmuls), library calls and attention kernels (kernels_cost.py),
in fusions, loops, calls and branches. Elementwise work is not counted: it is bytes, not FLOPs, that cost
there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jaxplan.compile.convolution_cost import convolution_flops
from jaxplan.compile.hlo import Computation, Instruction, Module
from jaxplan.compile.kernels_cost import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    MATMUL,
    custom_call_flops,
)
from jaxplan.compile.trip_count import trip_count

_ONCE = frozenset(("fusion", "call", "async-start", "call-start"))


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one device, one execution of the module.

    Attributes:
        by_kind: `matmul`, `attention_forward`, `attention_backward`, `kernel` (author's estimate) -> FLOPs.
        uncovered: target of a custom call whose work is not known -> executions.
        unknown_trip_counts: loops whose trip count is not known. Each was counted as one trip, so that with
        any of
            them the FLOPs are a lower bound.
    """

    by_kind: dict[str, float] = field(default_factory=dict)
    uncovered: dict[str, int] = field(default_factory=dict)
    unknown_trip_counts: int = 0

    @property
    def total(self) -> float:
        """FLOPs of all kinds."""
        return sum(self.by_kind.values())

    def __add__(self, other: FlopCount) -> FlopCount:
        return FlopCount(
            _sum(self.by_kind, other.by_kind),
            _sum(self.uncovered, other.uncovered),
            self.unknown_trip_counts + other.unknown_trip_counts,
        )

    def times(self, trips: int) -> FlopCount:
        """The same work done `trips` times."""
        return FlopCount(
            {kind: flops * trips for kind, flops in self.by_kind.items()},
            {target: calls * trips for target, calls in self.uncovered.items()},
            self.unknown_trip_counts,
        )


def _sum(left: dict, right: dict) -> dict:
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


def flops(module: Module) -> FlopCount:
    """FLOPs of the whole module on one device.

    Of a conditional's branches the costliest counts: an upper bound where they differ.
    """
    return FlopCounter(module).of(module.entry)


class FlopCounter:
    """FLOPs of the parts of one module; each computation is counted once and kept."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._counts: dict[str, FlopCount] = {}

    def of(self, computation: Computation) -> FlopCount:
        """FLOPs of one execution of `computation` and of all that it calls."""
        if computation.name not in self._counts:
            total = FlopCount()
            for instruction in computation.instructions:
                count = self.of_instruction(instruction)
                if count is not None:
                    total += count
            self._counts[computation.name] = total
        return self._counts[computation.name]

    def of_instruction(self, instruction: Instruction) -> FlopCount | None:
        """FLOPs of one execution of `instruction`; None where it holds no countable work."""
        opcode = instruction.opcode
        if opcode in ("dot", "ragged-dot"):
            return FlopCount({_kind(instruction): dot_flops(instruction)})
        if opcode == "convolution":
            return FlopCount({_kind(instruction): convolution_flops(instruction)})
        if opcode in _ONCE:
            return self.of(self._module.callee(instruction, "calls", "to_apply"))
        if opcode == "while":
            return self._loop(instruction)
        if opcode == "conditional":
            branches = (self.of(self._module.computation(name)) for name in instruction.called["branches"])
            return max(branches, key=lambda count: count.total)
        return self._custom_call(instruction) if opcode == "custom-call" else None

    def _loop(self, loop: Instruction) -> FlopCount:
        trips = trip_count(self._module, loop)
        body = self.of(self._module.callee(loop, "body"))
        if trips.count is None:
            return body + FlopCount(unknown_trip_counts=1)
        return body.times(trips.count)

    def _custom_call(self, call: Instruction) -> FlopCount | None:
        known = custom_call_flops(call)
        if known is None:
            return FlopCount(uncovered={call.custom_call_target: 1})
        kind, work = known
        return FlopCount({kind: work}) if work else None


def _kind(instruction: Instruction) -> str:
    """Matmuls of an attention kernel that is written in plain operations count as attention."""
    name = instruction.op_name
    if "jaxplan_attention_backward" in name:
        return ATTENTION_BACKWARD
    return ATTENTION_FORWARD if "jaxplan_attention_forward" in name else MATMUL


def dot_flops(dot: Instruction) -> float:
    """2 x result elements x contracted size."""
    left = dot.operand(0).shape.dims
    return 2.0 * dot.shape.elements * math.prod(left[dim] for dim in dot.integers("lhs_contracting_dims"))
