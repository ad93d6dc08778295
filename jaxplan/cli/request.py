"""What a command is asked to do: flags to a machine and a workload, with what was assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.topology import Machine
from jaxplan.plan.record import PlanRecord
from jaxplan.report.text import EXPERT_FLAGS
from jaxplan.workload.hf import from_hf_config
from jaxplan.workload.precision import precision as dtypes_of
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.user import AS_WRITTEN, Reference

DEFAULT_MODEL = "llama3-8b"
DEFAULT_PRECISION = "bf16"
DEFAULT_SEQUENCES_PER_DEVICE = 4
DEFAULT_TOKENS = 2048       # of a sequence, where a user's program takes a length and nobody gives one
ATTENTION_KERNELS = {"tpu": "splash", "cuda": "cudnn", "rocm": "blockwise", "cpu": "blockwise"}
SPLASH_SEQ = 128            # the TPU's kernel works on blocks of that many tokens
CUDNN_HEAD_DIM = 8          # cuDNN's takes multiples of it, from Hopper on up to 256, else 128 (JAX's own check)
DISPATCH = ("capacity", "dropless")
MIN_SEQ = 2                 # tokens that a causal language model learns anything from


def workload_of(
    machine: Machine,
    model: str | None,
    hf: Path | None,
    program: str | None,
    batch: int | None,
    seq: int | None,
    optimizer: str,
    experts: Mapping[str, Any] | None = None,
    precision: str = DEFAULT_PRECISION,
) -> Workload:
    """The workload that the flags name; what they leave open is assumed and listed in `defaults`.

    Args:
        experts: how a mixture of experts is run, by field of `Workload`; None is not given.
        precision: `workload.precision`; a program of the user's has its own.

    Raises:
        InputError: unknown model, unreadable configuration, a program that is not there, sizes that are not positive.
    """
    given = [flag for flag, v in (("--model", model), ("--hf", hf), ("--workload", program)) if v is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} were given", "one of them")
    given_experts = {name: value for name, value in (experts or {}).items() if value is not None}
    if program is not None:
        _check_experts(None, given_experts)
        if precision != DEFAULT_PRECISION:
            raise InputError(f"--precision {precision} with a program of yours", "none: the program says its dtypes")
        return _users(machine, Reference.parse(program), batch, seq, optimizer)
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
    _check_sizes(machine, batch, seq)
    if shape.positions == "learned" and seq > shape.max_positions:
        raise InputError(
            f"--seq {seq} with {shape.name}",
            f"at most {shape.max_positions}, the size of its table of positions",
            f"--seq {shape.max_positions}",
        )
    _check_experts(shape, given_experts)
    if shape.experts is not None:
        matters = "hot_expert_factor" if given_experts.get("dispatch") == "dropless" else "capacity_factor"
        assumed += [name for name in ("dispatch", matters) if name not in given_experts]
    dtypes = dtypes_of(precision)
    return Workload(shape, batch, seq, optimizer, defaults=tuple(assumed), **dtypes, **given_experts)


def _check_experts(shape: ModelShape | None, given: Mapping[str, Any]) -> None:
    """Refuses what no mixture of experts could be asked for, or what asks it of a dense model."""
    if given and (shape is None or shape.experts is None):
        flags = ", ".join(EXPERT_FLAGS[name] for name in given)
        what = "a program of yours" if shape is None else shape.name
        raise InputError(f"{flags} with {what}", "a model of the catalogue that has a mixture of experts")
    if given.get("dispatch", DISPATCH[0]) not in DISPATCH:
        raise InputError(f"--dispatch {given['dispatch']}", f"one of {', '.join(DISPATCH)}")
    if "hot_expert_factor" in given and given.get("dispatch") != "dropless":
        raise InputError("--hot-expert with a capacity, beyond which no expert takes tokens", "--dispatch dropless")
    if "capacity_factor" in given and given.get("dispatch") == "dropless":
        raise InputError("--capacity-factor with --dispatch dropless", "one of them")
    for name in ("capacity_factor", "hot_expert_factor"):
        if not math.isfinite(given.get(name, 1.0)) or given.get(name, 1.0) < 1:
            raise InputError(f"{EXPERT_FLAGS[name]} {given[name]:g}", "a number of at least 1")


def _check_sizes(machine: Machine, batch: int, seq: int) -> None:
    """Refuses sizes that no plan of the reference decoder could have."""
    if batch < 1:
        raise InputError(f"--batch {batch}", "a positive number")
    if seq < MIN_SEQ:
        raise InputError(f"--seq {seq}", f"at least {MIN_SEQ}")
    if machine.platform == "tpu" and seq % SPLASH_SEQ:
        near = -(-seq // SPLASH_SEQ) * SPLASH_SEQ
        raise InputError(f"--seq {seq}", f"a multiple of {SPLASH_SEQ} for the TPU's attention kernel", f"--seq {near}")


def _users(
    machine: Machine, reference: Reference, batch: int | None, seq: int | None, optimizer: str
) -> Workload:
    """The workload of a user's program; what it decides itself is `as-written`."""
    assumed = tuple(name for name, value in (("batch", batch), ("seq", seq)) if value is None)
    batch = DEFAULT_SEQUENCES_PER_DEVICE * machine.devices if batch is None else batch
    seq = reference.default_seq(DEFAULT_TOKENS) if seq is None else seq
    for name, value in (("--batch", batch), ("--seq", seq)):
        if value < 1:
            raise InputError(f"{name} {value}", "a positive number")
    return Workload(
        model=None,
        batch=batch,
        seq=seq,
        optimizer=optimizer,
        parameter_dtype=AS_WRITTEN,
        compute_dtype=AS_WRITTEN,
        reference=str(reference),
        program_hash=reference.digest(),
        defaults=assumed,
    )


def as_it_is_now(record: PlanRecord) -> PlanRecord:
    """The record with the user's program as its file is now; the same where the workload is no user's program.

    If the file has changed, the record is `stale`: its evidence is about another program.

    Raises:
        InputError: the file or the function is gone.
    """
    work = record.plan.workload
    if work.model is not None:
        return record
    work = replace(work, program_hash=Reference.parse(work.reference).digest())
    return replace(record, plan=replace(record.plan, workload=work))


def attention_kernel(machine: Machine, workload: Workload) -> str:
    """The attention kernel that the machine's compiler has; a user's program has its own."""
    if workload.model is None:
        return AS_WRITTEN
    return "blockwise" if attention_note(machine, workload) else ATTENTION_KERNELS[machine.platform]


def attention_note(machine: Machine, workload: Workload) -> str:
    """Why the model cannot have the machine's own attention kernel, or an empty text."""
    width = workload.model.head_dim if workload.model is not None else CUDNN_HEAD_DIM
    target = machine.chip.target
    hopper = target is not None and float(target.compute_capability) >= 9.0
    largest = 256 if hopper else 128
    if machine.platform != "cuda" or (width % CUDNN_HEAD_DIM == 0 and width <= largest):
        return ""
    return (
        f"attention in blocks of XLA operations: cuDNN's kernel takes heads of a multiple of {CUDNN_HEAD_DIM} up to "
        f"{largest} wide, {workload.name} has {width}"
    )
