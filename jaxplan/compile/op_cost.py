"""Seconds of one instruction that computes: the compiler's own estimate where it gives one, otherwise a
roofline.

TPU compilers note estimated cycles with each fusion; cycles over the clock of the catalogue are seconds.
GPU compilers note nothing: an instruction takes the longer of its FLOPs over the matmul rate and its bytes
over the memory's rate (roofline: Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785), plus the
gap between kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.compile.hlo import Instruction, Module
from jaxplan.compile.hlo_cost import FlopCount, FlopCounter
from jaxplan.compile.kernels_cost import ATTENTION_BACKWARD, ATTENTION_FORWARD, BOOKKEEPING, KERNEL, MATMUL
from jaxplan.compile.memory_traffic import FREE, memory_traffic
from jaxplan.machine.topology import Machine

# Fitted to 618 published step times (MaxText on v5e to tpu7x; Megatron, FSDP and others on A100, H100, B200):
# the part of the matmul peak that fused attention kernels reach, and the part of the memory rate that long
# passes reach.
ATTENTION_FRACTION = {"tpu": 0.35, "gpu": 0.55}
MEMORY_FRACTION = 0.75
# Catalogue rates are the best that matmuls of any shape reached. Fitted to the same steps, H100 matmuls ran
# at 0.66 of the peak where the best case is 0.80: the slow end of what a schedule may take. TPU cycles need
# no such allowance.
SUSTAINED_FRACTION = {"tpu": 1.0, "gpu": 0.82}
# Chosen: the order of a kernel launch that no graph hides. It matters only where kernels are short.
KERNEL_GAP_S = 3e-6
# XLA's mark for "no estimate" is INT64_MAX; nothing real comes near.
_NO_ESTIMATE = 2**60
_DTYPES = {"f32": "float32", "s8": "int8", "u8": "int8"}


@dataclass(frozen=True, slots=True)
class OpCost:
    """One execution of an instruction.

    Attributes:
        kind: `matmul`, `attention`, `kernel` or `memory-bound`.
        seconds: as estimated.
        low_s: at the peak rates of the data sheet, with no gap. Flags and shapes move a TPU compiler's own estimate by
            a quarter and more, so that it bounds nothing from below.
        high_s: with matmuls at the rate that whole steps sustained.
    """

    kind: str
    seconds: float
    low_s: float
    high_s: float


class OpCosts:
    """Costs of the instructions of one module on one device of a machine.

    `uncovered` counts, by custom-call target, the instructions asked about whose work is not known: they
    cost their memory traffic only.
    """

    def __init__(self, module: Module, machine: Machine) -> None:
        self._module, self._machine = module, machine
        self._flops = FlopCounter(module)
        self._tpu = machine.kind == "tpu"
        self._matmul_fraction = machine.chip.measured.get("matmul_fraction", 1.0)
        self._attention_fraction = machine.chip.measured.get("attention_fraction", ATTENTION_FRACTION[machine.kind])
        self.uncovered: dict[str, int] = {}

    def of(self, instruction: Instruction) -> OpCost | None:
        """Cost of `instruction`; None where it takes no time of its own."""
        if instruction.opcode in FREE or instruction.custom_call_target in BOOKKEEPING:
            return None
        flops = self._flops.of_instruction(instruction) or FlopCount()
        for target in flops.uncovered:
            self.uncovered[target] = self.uncovered.get(target, 0) + 1
        kind = _kind(flops)
        cycles = estimated_cycles(instruction)
        cost = self._roofline(instruction, flops, kind)
        if cycles and self._tpu and self._machine.chip.clock_hz:
            seconds = cycles / self._machine.chip.clock_hz
            return OpCost(kind, seconds, min(seconds, cost.low_s if cost else 0.0), seconds)
        return cost

    def _roofline(self, instruction: Instruction, flops: FlopCount, kind: str) -> OpCost | None:
        nbytes = self._main_memory_bytes(instruction)
        if not nbytes and not flops.total:
            return None
        peak = self._machine.device_flops_per_s(self._dtype(instruction))
        memory = nbytes / self._machine.device_hbm_bytes_per_s
        attention = flops.by_kind.get(ATTENTION_FORWARD, 0.0) + flops.by_kind.get(ATTENTION_BACKWARD, 0.0)
        matmul = flops.total - attention
        kernels = attention / (peak * self._attention_fraction)
        compute = matmul / (peak * self._matmul_fraction)
        slow = compute / SUSTAINED_FRACTION[self._machine.kind]
        gap = 0.0 if self._tpu else KERNEL_GAP_S
        return OpCost(
            kind,
            max(compute + kernels, memory / MEMORY_FRACTION) + gap,
            max(flops.total / peak, memory),
            max(slow + kernels, memory / MEMORY_FRACTION) + gap,
        )

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


def _kind(flops: FlopCount) -> str:
    found = flops.by_kind
    if ATTENTION_FORWARD in found or ATTENTION_BACKWARD in found:
        return "attention"
    if MATMUL in found:
        return "matmul"
    return "kernel" if KERNEL in found or flops.uncovered else "memory-bound"
