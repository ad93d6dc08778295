"""What part of a chip's rates the parts of a training step reach. No JAX here.

Where the machine carries a calibration of its own (`machine.attached`) its figures are taken.

One place for the estimate of a plan, the timeline of a compiled one and the predictions of published runs, so that all
mean the same by a matmul's time. The figures are the catalogue's measurements and the calibration
(`profiling/calibrations/published.toml`: fitted to published step times, priors and sources beside the values).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxplan.machine import calibration
from jaxplan.machine.chip import Chip
from jaxplan.machine.topology import Machine

# Chips of one silicon: the published figures are too few to tell their rates apart.
SILICON = {
    "a100-40": "a100", "a100-80": "a100", "a100-80-pcie": "a100",
    "h100": "h100", "h200": "h100", "gh200": "h100", "h800": "h100", "h100-pcie": "h100", "h100-96-hbm2e": "h100-500w",
    "b200": "b200", "b300": "b200", "gb200": "gb200", "gb300": "gb200",
    "mi300x": "mi300", "mi325x": "mi300", "mi355x": "mi355",
}  # fmt: skip
# The best that large matmuls reach, of the peak, where the catalogue has no measurement of the chip: between those of
# its kind that it has (TPU v6e 0.90 and 7x 0.83, whose peak is bound by power; GPUs 0.51 to 0.87).
BEST_MATMUL = {"tpu": 0.95, "gpu": 0.80}
BEST_NARROW = {"tpu": 0.95, "gpu": 0.72}


# Computation took so much longer while collectives ran beside it, on A100, H100, MI210 and MI250 in the mean; at most
# 0.40 (Lee et al. 2025, arXiv:2507.03114, abstract). A TPU's transfers need none of what computes; a CPU waits for its
# own.
SLOWED = {"tpu": 0.0, "gpu": 0.189, "cpu": 0.0}


def silicon(chip: Chip) -> str:
    """What the calibration calls the chip."""
    return SILICON.get(chip.id, chip.id)


def matmul_fraction(machine: Machine, dtype: str = "") -> float:
    """The part of the peak that the best matmul reached when somebody measured this chip, or chips of its kind.

    Args:
        dtype: of the operands.
    """
    measured, kind = machine.chip.measured, machine.kind
    if (own := _own(machine, f"matmul peak {dtype or 'bfloat16'}", dtype)) is not None:
        return own
    if dtype.startswith("float8") and kind == "gpu":
        return measured.get("matmul_float8_fraction", BEST_NARROW[kind])
    return measured.get("matmul_fraction", BEST_MATMUL[kind])


def sustained_fraction(machine: Machine, dtype: str = "") -> float:
    """The part of the peak that the matmuls of a training step reach, less what their shapes cost."""
    if (measured := _own(machine, f"matmul {dtype or 'bfloat16'}", dtype)) is not None:
        return measured
    known, chip = _known(), silicon(machine.chip)
    narrow = dtype.startswith("float8") and machine.kind == "gpu"
    own = known.get(f"{'narrow' if narrow else 'matmul'}.{chip}", 1.0)
    return matmul_fraction(machine, dtype) * known[f"sustained.{machine.kind}"] * own


def wave_share(machine: Machine) -> float:
    """The share of a GPU's wave quantisation that its schedulers do not win back."""
    known = _known()
    return known.get(f"wave.{silicon(machine.chip)}", known["wave"])


def saturation(machine: Machine, dtype: str = "") -> float:
    """Elements of a matmul's inner loop in whose time its pipeline or array could have filled and drained."""
    narrow = "narrow_" if dtype.startswith("float8") else ""
    return _known()[f"{narrow}saturation.{machine.kind}"]


def attention_fraction(machine: Machine) -> float:
    """The part of the peak that fused attention reaches in programs that XLA compiles."""
    if (measured := _own(machine, "attention", "bfloat16")) is not None:
        return measured
    known, chip = _known(), silicon(machine.chip)
    names = (f"attention.{chip}.xla-{machine.kind}", f"attention.{chip}", f"attention.{machine.kind}")
    return next(known[name] for name in names if name in known)


def memory_fraction(machine: Machine) -> float:
    """The part of the memory's rate that long passes reach."""
    measured = None if machine.attached is None else machine.attached.rate("memory", _at_work(machine))
    return _known()["memory"] if measured is None else min(1.0, measured / machine.chip.hbm_bytes_per_s)


def _own(machine: Machine, name: str, dtype: str) -> float | None:
    """The part of the peak that was measured on this very machine; None where it was not."""
    if machine.attached is None:
        return None
    rate = machine.attached.rate(name, _at_work(machine))
    return None if rate is None else min(1.0, rate / machine.device_flops_per_s(dtype or "bfloat16"))


def _at_work(machine: Machine) -> int:
    """Devices whose rates count: all of a host that they share, as many as were measured where each has its own."""
    assert machine.attached is not None
    return machine.devices if machine.kind == "cpu" else machine.attached.devices


def measured_step_s(machine: Machine, seconds: float) -> float:
    """What a training loop measures where a program takes the devices so long.

    The host's work on each step is added, and the wait for the slowest of n hosts: the expected maximum of n normal
    variables is about sqrt(2 ln n) standard deviations above their mean.
    """
    known = _known()
    slowest = known["jitter"] * math.sqrt(2 * math.log(machine.hosts))
    return (seconds + known["fixed_s"]) * (1 + slowest)


def hidden_share(machine: Machine) -> float:
    """The share of the movement of weights and gradients that fits under compute and is hidden by it."""
    if machine.kind == "cpu" and machine.attached is not None:
        return machine.attached.rate("hidden", machine.devices) or 0.0
    return _known()[f"state_overlap.xla-{machine.kind}"]


def slowed_by_collectives(machine: Machine) -> float:
    """How much longer computation takes while collectives run beside it."""
    shared = None if machine.attached is None else machine.attached.rate("hidden", _at_work(machine))
    return SLOWED[machine.kind] if shared is None or machine.kind == "cpu" else 1.0 - shared


def _known() -> Mapping[str, float]:
    return calibration.load().values
