"""Seconds of one instruction that computes: by a roofline, and by the compiler's own estimate where it gives one.

Roofline (Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785): an instruction takes the longer of its FLOPs
over the rate that such matmuls reach and its bytes over the memory's rate. On GPUs the gap between kernels is added.

TPU compilers note estimated cycles with each fusion; cycles over the clock of the catalogue are seconds. They count
what runs beside each other as spent one after the other: MaxText's step of 16B parameters on v5e, whose matmuls had
0.88 of the peak, is estimated to have 0.74, and passes over memory get two fifths of the memory's rate for each array
that they read or write (libtpu 0.0.42.1). So the estimate bounds matmuls, and fusions that pass over memory, from
above, and where the roofline at the rates that are reached says less, that is the value. What moves data across lanes
(copies into another layout, transposes, reductions, sorts) keeps the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.compile.hlo import Instruction, Module
from jaxplan.compile.hlo_cost import FlopCount, FlopCounter
from jaxplan.compile.kernels_cost import ATTENTION_BACKWARD, ATTENTION_FORWARD, BOOKKEEPING, KERNEL, MATMUL
from jaxplan.compile.matmul_shape import gpu_padding, shape_of, tpu_padding
from jaxplan.compile.memory_traffic import FREE, memory_traffic
from jaxplan.machine.reached import (
    attention_fraction,
    memory_fraction,
    saturation,
    sustained_fraction,
    wave_share,
)
from jaxplan.machine.topology import Machine

# Chosen: the slow end. Five published runs of one configuration differ by 7%, releases of one program by more.
SPREAD = 1.1
# Chosen: the order of a kernel launch that no graph hides. It matters only where kernels are short.
KERNEL_GAP_S = 3e-6
# XLA's mark for "no estimate" is INT64_MAX; nothing real comes near.
_NO_ESTIMATE = 2**60
_DTYPES = {"f32": "float32", "s8": "int8", "u8": "int8"}
_STREAMS = ("fusion", "broadcast")      # what a TPU passes over memory as fast as that is


@dataclass(frozen=True, slots=True)
class OpCost:
    """One execution of an instruction.

    Attributes:
        kind: `matmul`, `attention`, `kernel` or `memory-bound`.
        seconds: as estimated.
        low_s: at the peak rates of the data sheet, with no gap.
        high_s: as long as the compiler says, and at the slow end of what runs showed.
    """

    kind: str
    seconds: float
    low_s: float
    high_s: float


class OpCosts:
    """Costs of the instructions of one module on one device of a machine.

    `uncovered` counts, by custom-call target, the instructions asked about whose work is not known: they
    cost their memory traffic only. A launch costs nothing: accelerators' hosts run ahead.
    """

    launch_s = 0.0

    def __init__(self, module: Module, machine: Machine) -> None:
        self._module, self._machine = module, machine
        self._flops = FlopCounter(module)
        self._tpu = machine.kind == "tpu"
        self.uncovered: dict[str, int] = {}

    def of(self, instruction: Instruction) -> OpCost | None:
        """Cost of `instruction`; None where it takes no time of its own."""
        if instruction.opcode in FREE or instruction.custom_call_target in BOOKKEEPING:
            return None
        flops = self._flops.of_instruction(instruction) or FlopCount()
        for target in flops.uncovered:
            self.uncovered[target] = self.uncovered.get(target, 0) + 1
        cost = self._roofline(instruction, flops)
        cycles = estimated_cycles(instruction)
        if cycles and self._tpu and self._machine.chip.clock_hz:
            return self._bounded(instruction, flops, cost, cycles / self._machine.chip.clock_hz)
        return cost

    def _bounded(self, instruction: Instruction, flops: FlopCount, cost: OpCost | None, estimate: float) -> OpCost:
        """A TPU's instruction by its roofline and by the compiler's estimate, which bounds it or is all that counts."""
        if cost is None:
            return OpCost(kind_of(flops), estimate, 0.0, estimate)
        streams = instruction.opcode in _STREAMS or cost.kind == "matmul"
        seconds = min(cost.seconds, estimate) if streams else estimate
        return OpCost(cost.kind, seconds, min(cost.low_s, seconds), max(seconds, estimate))

    def _roofline(self, instruction: Instruction, flops: FlopCount) -> OpCost | None:
        nbytes = self._main_memory_bytes(instruction)
        if not nbytes and not flops.total:
            return None
        dtype = self._dtype(instruction)
        peak = self._machine.device_flops_per_s(dtype)
        memory = nbytes / self._machine.device_hbm_bytes_per_s
        attention = flops.by_kind.get(ATTENTION_FORWARD, 0.0) + flops.by_kind.get(ATTENTION_BACKWARD, 0.0)
        matmul = flops.total - attention
        compute = attention / (peak * attention_fraction(self._machine))
        if matmul:
            compute += matmul / (peak * sustained_fraction(self._machine, dtype)) * self._padding(instruction, dtype)
        gap = 0.0 if self._tpu else KERNEL_GAP_S
        return OpCost(
            kind_of(flops),
            max(compute, memory / memory_fraction(self._machine)) + gap,
            max(flops.total / peak, memory),
            SPREAD * max(compute, memory / memory_fraction(self._machine)) + gap,
        )

    def _padding(self, instruction: Instruction, dtype: str) -> float:
        """Executed over useful work of an instruction's first matmul, whose shape stands for all in it."""
        found = self._first_matmul(instruction)
        count = self._flops.of_instruction(found) if found is not None else None
        shape = shape_of(found, count.total) if found is not None and count is not None else None
        if shape is None:
            return 1.0
        machine, chip = self._machine, self._machine.chip
        gpu = not self._tpu
        fill = gpu_padding(shape, chip.core_count, wave_share(machine)) if gpu else tpu_padding(shape, chip.mxu_size)
        return fill * shape.started(saturation(machine, dtype))

    def _main_memory_bytes(self, instruction: Instruction) -> int:
        """What a TPU keeps in VMEM, a memory space of its own, costs no HBM traffic."""
        if self._tpu and any(shape.memory_space for shape in instruction.shapes):
            return 0
        return memory_traffic(self._module, instruction)

    def _dtype(self, instruction: Instruction) -> str:
        """The dtype whose matmul rate counts: of the first matmul's operand; bfloat16 without one."""
        found = self._first_matmul(instruction)
        text = found.operand(0).shape.dtype if found is not None else "bf16"
        dtype = "float8" if text.startswith("f8") else _DTYPES.get(text, "bfloat16")
        return dtype if dtype in self._machine.chip.matmul_flops_per_s else "bfloat16"

    def _first_matmul(self, instruction: Instruction) -> Instruction | None:
        if instruction.opcode in ("dot", "convolution") or instruction.custom_call_target.startswith("__cublas$"):
            return instruction
        if instruction.opcode != "fusion":
            return None
        inner = (self._first_matmul(one) for one in self._module.callee(instruction, "calls").instructions)
        return next((one for one in inner if one is not None), None)


def estimated_cycles(instruction: Instruction) -> int:
    """The TPU compiler's estimate for one instruction, in cycles of one core; 0 where it gave none."""
    window = instruction.config.get("window_config")
    text = window.get("estimated_cycles") if isinstance(window, dict) else None
    cycles = int(text) if text else 0
    return cycles if 0 < cycles < _NO_ESTIMATE else 0


def kind_of(flops: FlopCount) -> str:
    """What an operation with that work is called in ledgers: `matmul`, `attention`, `kernel` or `memory-bound`."""
    found = flops.by_kind
    if ATTENTION_FORWARD in found or ATTENTION_BACKWARD in found:
        return "attention"
    if MATMUL in found:
        return "matmul"
    return "kernel" if KERNEL in found or flops.uncovered else "memory-bound"
