"""What part of a chip's rates the parts of a training step reach. No JAX here.

One place for the estimate of a plan and the timeline of a compiled one, so that both mean the same by a matmul's time.
"""

from __future__ import annotations

from jaxplan.machine.topology import Machine

# Of the peak that fused attention kernels reach, and of the memory's rate that long passes reach: known before, from a
# cost model of published steps (MaxText on v5e to tpu7x; Megatron, FSDP and others on A100, H100, B200).
ATTENTION_FRACTION = {"tpu": 0.35, "gpu": 0.55}
MEMORY_FRACTION = 0.75
# Of the peak that matmuls reach on a TPU for which the catalogue has no figure: chosen, between v5e's and v6e's.
TPU_MATMUL_FRACTION = 0.9
# Of the best matmul's rate that a GPU's training steps sustain, under their power limit and with whatever kernels the
# library picks: fitted to MaxText's five steps on H100 (profiling/published/recipes.toml, part `fit`).
SUSTAINED_FRACTION = {"tpu": 1.0, "gpu": 0.7}


def matmul_fraction(machine: Machine, dtype: str = "") -> float:
    """The part of the peak that the best matmul reached when somebody measured this chip; 1 on GPUs where nobody has.

    Args:
        dtype: of the operands; where nobody measured it, what is known of other dtypes stands for it.
    """
    measured = machine.chip.measured
    narrow = measured.get("matmul_float8_fraction") if dtype.startswith("float8") else None
    usual = TPU_MATMUL_FRACTION if machine.kind == "tpu" else 1.0
    return narrow if narrow is not None else measured.get("matmul_fraction", usual)


def sustained_fraction(machine: Machine, dtype: str = "") -> float:
    """The part of the peak that the matmuls of a training step reach."""
    return matmul_fraction(machine, dtype) * SUSTAINED_FRACTION[machine.kind]


def attention_fraction(machine: Machine) -> float:
    """The part of the peak that fused attention reaches."""
    return machine.chip.measured.get("attention_fraction", ATTENTION_FRACTION[machine.kind])
