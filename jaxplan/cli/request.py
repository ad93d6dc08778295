"""What a command is asked to do: flags to a machine and a workload, with what was assumed."""

from __future__ import annotations

from pathlib import Path

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.topology import Machine
from jaxplan.workload.hf import from_hf_config
from jaxplan.workload.shape import Workload

DEFAULT_MODEL = "llama3-8b"
DEFAULT_SEQUENCES_PER_DEVICE = 4
ATTENTION_KERNELS = {"tpu": "splash", "cuda": "cudnn", "rocm": "blockwise"}


def workload_of(
    machine: Machine, model: str | None, hf: Path | None, batch: int | None, seq: int | None, optimizer: str
) -> Workload:
    """The workload that the flags name; what they leave open is assumed and listed in `defaults`.

    Raises:
        InputError: unknown model, unreadable configuration, sizes that are not positive.
    """
    if model is not None and hf is not None:
        raise InputError("--model and --hf were both given", "one of them")
    shape = from_hf_config(hf) if hf is not None else catalogue.model(model or DEFAULT_MODEL)
    assumed = []
    if model is None and hf is None:
        assumed.append("model")
    if batch is None:
        assumed.append("batch")
        batch = DEFAULT_SEQUENCES_PER_DEVICE * machine.devices
    if seq is None:
        assumed.append("seq")
        seq = shape.default_seq
    for name, value in (("--batch", batch), ("--seq", seq)):
        if value < 1:
            raise InputError(f"{name} {value}", "a positive number")
    if shape.positions == "learned" and seq > shape.max_positions:
        raise InputError(
            f"--seq {seq} with {shape.name}",
            f"at most {shape.max_positions}, the size of its table of positions",
            f"--seq {shape.max_positions}",
        )
    return Workload(model=shape, batch=batch, seq=seq, optimizer=optimizer, defaults=tuple(assumed))


def attention_kernel(machine: Machine) -> str:
    """The attention kernel that the machine's compiler has."""
    return ATTENTION_KERNELS[machine.platform]
