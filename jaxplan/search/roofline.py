"""The roofline of a plan: what bounds each kind of its work, the matrix units or the memory. No JAX here.

Williams, Waterman, Patterson 2009 (doi:10.1145/1498765.1498785): an operation takes the longer of its FLOPs over the
peak rate and its bytes over the memory's rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.step import Estimates
from jaxplan.machine.reached import attention_fraction, memory_fraction, sustained_fraction
from jaxplan.machine.topology import Machine
from jaxplan.workload.table import Table

ON_MATRIX_UNITS = ("matmul", "attention")


@dataclass(frozen=True)
class Roofline:
    """All work of one kind: of one step on one device, the bubble of a pipeline left out.

    Attributes:
        recomputed: done again in the backward pass.
        seconds: by the roofline of each operation, so at least that of `compute_s` and `memory_s`.
        compute_s: of the FLOPs alone, at the rate that this kind reaches; 0 for what no matrix unit does.
        memory_s: of the bytes alone, at the rate that long passes reach.
    """

    kind: str
    recomputed: bool
    flops: float
    nbytes: float
    seconds: float
    compute_s: float
    memory_s: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes if self.nbytes else math.inf

    @property
    def bound(self) -> str:
        """Which side binds it."""
        return "compute" if self.compute_s >= self.memory_s else "memory"


@dataclass(frozen=True)
class Chip:
    """The two sides of a device's roofline.

    Attributes:
        flops_per_s: the peak of the program's dtype; matmuls reach `fraction` of it in a training step, fused attention
            `attention_fraction`.
        hbm_bytes_per_s: of the data sheet; long passes reach `hbm_fraction` of it.
    """

    flops_per_s: float
    fraction: float
    hbm_bytes_per_s: float
    attention_fraction: float
    hbm_fraction: float

    @property
    def ridge(self) -> float:
        """FLOPs a byte from which on a matmul is bound by compute."""
        return self.flops_per_s * self.fraction / (self.hbm_bytes_per_s * self.hbm_fraction)


def chip_of(machine: Machine, table: Table) -> Chip:
    """The rates of a device for a program.

    Raises:
        InputError: the catalogue has no matmul rate of the chip for the program's dtype.
    """
    try:
        peak = machine.device_flops_per_s(table.compute_dtype)
    except ValueError as error:
        suggestion = f"a file of your own with matmul_flops_per_s.{table.compute_dtype}, or matmuls of another dtype"
        raise InputError(f"{table.name}: {error}", suggestion=suggestion) from error
    return Chip(
        peak,
        sustained_fraction(machine, table.compute_dtype),
        machine.device_hbm_bytes_per_s,
        attention_fraction(machine),
        memory_fraction(machine),
    )


def rooflines(found: Estimates, variables: np.ndarray, bubble: float, chip: Chip) -> tuple[Roofline, ...]:
    """The work by kind, the longest first.

    Args:
        found: of one plan. variables: of that plan. bubble: time of its pipeline over the time of its work.
    """
    sums: dict[tuple[str, bool], np.ndarray] = defaultdict(lambda: np.zeros(5))
    for i, entry in enumerate(found.works):
        flops, nbytes = float(found.flops[0, i]), float(entry.nbytes.at(variables)[0])
        part = chip.attention_fraction if entry.kind == "attention" else chip.fraction
        rate = chip.flops_per_s * part if entry.kind in ON_MATRIX_UNITS else math.inf
        passes_s = nbytes / (chip.hbm_bytes_per_s * chip.hbm_fraction)
        costs = np.array([flops, nbytes, found.compute_s[0, i], flops / rate, passes_s])
        sums[entry.kind, entry.recomputed] += costs / (bubble if entry.in_layers else 1.0)
    lines = [Roofline(*key, *map(float, costs)) for key, costs in sums.items() if costs[2] > 0]
    return tuple(sorted(lines, key=lambda line: -line.seconds))
