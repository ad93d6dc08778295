"""Seconds of one instruction of a CPU program: its work times the prices that a calibration measured. No JAX here.

The bounds are the calibration's own: twice the median distance of its timings from the fit, either way.
"""

from __future__ import annotations

from jaxplan.compile.hlo import Instruction, Module
from jaxplan.compile.host_arena import fresh_bytes
from jaxplan.compile.host_work import Work, work_of
from jaxplan.compile.op_cost import OpCost
from jaxplan.machine.attached import FRESH
from jaxplan.machine.topology import Machine


class HostCosts:
    """Costs of the instructions of one module on one of the virtual CPU devices of a machine, all of them at work.

    Attributes:
        uncovered: by kind of work, instructions that need work whose price was not measured.
        launch_s: of starting the program once, and of the memory that it takes anew each time.

    Raises:
        ValueError: the machine carries no calibration.
    """

    def __init__(self, module: Module, machine: Machine) -> None:
        known = machine.attached
        if known is None:
            raise ValueError(f"{machine.name} has no calibration: expected a machine of `attached_machine`")
        self._module = module
        self._prices = known.prices(machine.devices)
        self._parallel = max(1, known.cores // machine.devices)
        self._off = min(0.9, 2 * max((r.median for r in known.residuals if r.of == "kernels"), default=0.0))
        anew_s = self._prices.get(FRESH, 0.0) * fresh_bytes(module)
        self.launch_s = (known.rate("launch", machine.devices) or 0.0) + anew_s
        self.uncovered: dict[str, int] = {}

    def of(self, instruction: Instruction) -> OpCost | None:
        """Cost of `instruction`; None where it takes no time of its own."""
        work = work_of(self._module, instruction, self._parallel)
        if not work:
            return None
        target = instruction.custom_call_target
        unknown = [n for n, amount in work.items() if amount and n not in self._prices and " beyond " not in n]
        for name in (*unknown, *([target] if target and "chosen" not in work else ())):
            self.uncovered[name] = self.uncovered.get(name, 0) + 1
        seconds = sum(amount * self._prices.get(name, 0.0) for name, amount in work.items())
        return OpCost(kind_of(work), seconds, seconds * (1 - self._off), seconds * (1 + self._off))


def kind_of(work: Work) -> str:
    """`matmul` for what holds one, else `memory-bound`."""
    return "matmul" if any(name.endswith("FLOPs") and amount for name, amount in work.items()) else "memory-bound"
