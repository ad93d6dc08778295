"""A plan scaled down to what is attached: the same roles, as much work a device, a smaller model where it must be.

Pure: no JAX here, and nothing is tried out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxplan.errors import InputError
from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis, Plan, divisors
from jaxplan.run.attached import KERNELS, Attached, machine_of
from jaxplan.run.axes import axis_sizes
from jaxplan.run.reduce import Needs, divided, smaller
from jaxplan.workload.parameters import active_parameter_count
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.user import AS_WRITTEN

#: Chosen: the FLOPs of a step that virtual CPU devices are given, all together. Two cores need about a second for them.
VIRTUAL_STEP_FLOPS = 2e10
#: Chosen: those of a step whose loss is compared with one device's.
PARITY_STEP_FLOPS = 2e8
SEQ_FLOOR = 32          # tokens; chosen: shorter sequences save nothing any more
KERNEL_TOKENS = {"splash": 128}     # that an attention kernel's sequence comes in multiples of

Fits = Callable[[Plan], bool]


@dataclass(frozen=True)
class Scaled:
    """A plan as it runs, and how it differs from the plan that was asked for.

    Attributes:
        words: what was changed and why, a sentence each; empty where nothing was.
    """

    asked: Plan
    plan: Plan
    words: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether it is another amount of work, or other axes; a kernel's replacement alone is none."""
        return bool(self._axes() or self._model() or self.asked.workload.tokens != self.plan.workload.tokens)

    def to_json(self) -> dict[str, Any] | None:
        """Pairs (asked, ran); None where nothing was scaled."""
        if not self.changed:
            return None
        asked, ran = self.asked.workload, self.plan.workload
        return {
            "axes": self._axes(),
            "batch": [asked.batch, ran.batch],
            "seq": [asked.seq, ran.seq],
            "microbatches": [self.asked.microbatches, self.plan.microbatches],
            "model": self._model() or None,
            "why": " ".join(self.words),
        }

    def _axes(self) -> dict[str, list[int]]:
        pairs = {axis: [size, self.plan.size(axis)] for axis, size in self.asked.sizes.items()}
        return {axis: pair for axis, pair in pairs.items() if pair[0] != pair[1]}

    def _model(self) -> dict[str, list[Any]]:
        asked, ran = self.asked.workload.model, self.plan.workload.model
        return {} if asked is None or ran is None else differences(asked, ran)


def differences(asked: ModelShape, ran: ModelShape) -> dict[str, list[Any]]:
    """The sizes in which two shapes differ, those of a mixture and of latent attention too, as (asked, ran)."""
    before, after = _flat(dataclasses.asdict(asked)), _flat(dataclasses.asdict(ran))
    return {name: [before[name], value] for name, value in after.items() if value != before.get(name)}


def _flat(sizes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sizes.items():
        inner = _flat(value, f"{name}.") if isinstance(value, Mapping) else {prefix + name: value}
        found |= inner
    return found


def scaled(
    asked: Plan,
    attached: Attached,
    fits: Fits | None = None,
    *,
    keep_vocab: bool = False,
    calibration: AttachedCalibration | None = None,
) -> Scaled:
    """The plan as it can run on what is attached.

    Args:
        fits: whether a plan of so many devices can run here (its memory, or how long a step takes); asked of smaller
            and smaller models. None: `affordable` on virtual devices, everything elsewhere.
        keep_vocab: the vocabulary stays (token ids are given).
        calibration: of the attached devices, at whose rates the machine then is.

    Raises:
        InputError: no smaller plan can run here either, or the plan cannot be cut.
    """
    sizes = axis_sizes(asked.sizes, attached.devices)
    devices = math.prod(sizes.values())
    chosen = _fitted(asked, attached, sizes, machine_of(attached, asked.machine, devices, calibration))
    if attached.are(asked.machine, devices):
        return Scaled(asked, chosen, tuple(_words(asked, chosen, attached)))
    judge = fits or (affordable if attached.virtual else _anything)
    try:
        tried = _candidates(chosen, asked, attached, keep_vocab)
        found = next((plan for plan in tried if judge(plan)), None)
    except ValueError as error:
        raise InputError(
            f"{asked.label} cannot be cut to {attached.devices} devices: {error}",
            "a plan whose axes divide",
            f"{asked.machine.devices} devices",
        ) from error
    if found is None:
        raise InputError(
            f"{asked.label} on {attached.devices} x {attached.device_kind}: even its smallest model of the same "
            "structure is too large to run here",
            "more or larger devices",
        )
    return Scaled(asked, found, tuple(_words(asked, found, attached)))


def affordable(plan: Plan, most: float = VIRTUAL_STEP_FLOPS) -> bool:
    """Whether a step takes at most so many FLOPs; nothing is known of a user's program, which runs as it is."""
    return plan.workload.model is None or step_flops(plan.workload.model, plan.workload) <= most


def step_flops(model: ModelShape, work: Workload) -> float:
    """FLOPs of a step without recomputation, about: 6 for each parameter that a token meets, and causal attention,
    6 L N H S a token (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, halved for the mask)."""
    attention = 6 * model.layers * model.heads * model.head_dim * work.seq
    return float(work.tokens) * (6 * active_parameter_count(model) + attention)


def parity_plan(plan: Plan) -> Plan:
    """A plan of the same roles, small and in float32, whose loss can be compared with one device's.

    A user's program keeps its dtypes and its sizes, but for the batch: it gets the smallest that its axes divide.
    """
    work = plan.workload
    if work.model is None:
        unit = plan.batch_shards * plan.microbatches
        return replace(plan, workload=replace(work, batch=unit))
    exact = replace(work, compute_dtype="float32", parameter_dtype="float32", matmul_dtype="")
    plain = replace(plan, workload=exact, attention="blockwise", compiler_flags={})
    small = Attached("cpu", "cpu", plan.machine.devices)
    tried = list(_reduced(plain, plain, small, keep_vocab=False))
    return next((one for one in tried if affordable(one, PARITY_STEP_FLOPS)), tried[-1])


def _anything(plan: Plan) -> bool:
    return True


def _fitted(asked: Plan, attached: Attached, sizes: Mapping[str, int], machine: Machine) -> Plan:
    """The plan on its new mesh, with the kernel and the flags that the platform knows, its work still the asked."""
    same = attached.is_chip(asked.machine.chip)
    known = asked.attention in (*KERNELS[attached.platform], "blockwise", AS_WRITTEN)
    if machine == asked.machine:
        return asked
    axes = tuple(MeshAxis(axis.name, sizes[axis.name], axis.role) for axis in asked.axes)
    batch = _batch(asked, sizes, asked.microbatches, machine.devices)
    return replace(
        asked,
        machine=machine,
        axes=axes,
        workload=replace(asked.workload, batch=batch),
        attention=asked.attention if known else "blockwise",
        zero1=asked.zero1 and sizes.get("data", 1) > 1,
        zero2=asked.zero2 and sizes.get("data", 1) > 1,
        **({} if sizes.get("stage", 1) > 1 else {"schedule": "gpipe", "repeats": 1}),
        compiler_flags=dict(asked.compiler_flags) if same else {},
    )


def _batch(asked: Plan, sizes: Mapping[str, int], microbatches: int, devices: int, by: int = 1) -> int:
    """Sequences of a step so that a device has as much to do as was asked, in what the axes divide."""
    shards = math.prod(sizes.get(axis, 1) for axis in ("data", "fsdp", "expert"))
    unit = shards * math.lcm(microbatches, sizes.get("stage", 1))
    return unit * max(1, round(asked.workload.batch * devices / (asked.machine.devices * by * unit)))


def _candidates(plan: Plan, asked: Plan, attached: Attached, keep_vocab: bool) -> Iterator[Plan]:
    if plan.workload.model is None:
        yield plan
        return
    yield from _reduced(plan, asked, attached, keep_vocab)


def _reduced(plan: Plan, asked: Plan, attached: Attached, keep_vocab: bool) -> Iterator[Plan]:
    """Smaller and smaller plans of the same mesh; of narrower models also the sequence and the batch are smaller."""
    work = plan.workload
    assert work.model is not None
    needs = Needs.of(
        plan.sizes,
        plan.repeats,
        plan.remat,
        plan.zero1,
        plan.context_attention == "ulysses",
        widths=attached.virtual,
        vocab=not keep_vocab,
    )
    for model, by in smaller(work.model, needs):
        micro = _microbatches(plan, by)
        seq = divided(work.seq, by, _tokens(plan), SEQ_FLOOR)
        batch = _batch(asked, plan.sizes, micro, plan.machine.devices, by)
        yield replace(
            plan,
            workload=replace(work, model=model, seq=seq, batch=batch),
            microbatches=micro,
            loss_chunks=_chunks(plan, model),
        )


def _tokens(plan: Plan) -> int:
    """What a sequence comes in multiples of: two pieces a device (the ring's order), whole ones over `tensor`."""
    return 2 * plan.size("context") * plan.size_of_role("tensor") * KERNEL_TOKENS.get(plan.attention, 1)


def _microbatches(plan: Plan, by: int) -> int:
    """Fewer microbatches, but several where there were, and as many as a circular pipeline needs."""
    least = min(plan.microbatches, max(2, plan.stages))
    return min(d for d in divisors(plan.microbatches) if d >= max(least, plan.microbatches // by))


def _chunks(plan: Plan, model: ModelShape) -> int:
    """Parts of a device's vocabulary: as many as were asked, as far as they divide it."""
    local = model.vocab // plan.size_of_role("tensor")
    return max(d for d in divisors(local) if d <= plan.loss_chunks)


def _words(asked: Plan, ran: Plan, attached: Attached) -> Iterator[str]:
    result = Scaled(asked, ran)
    if cut := result._axes():
        gone = [axis for axis, (_, size) in cut.items() if size == 1]
        yield (
            f"{attached.devices} devices are attached, the plan is for {asked.machine.devices}: "
            f"{', '.join(f'{axis} {old} -> {new}' for axis, (old, new) in cut.items())}"
            + (f" (no device left for {', '.join(gone)})." if gone else " (the same roles).")
        )
    used = ran.machine.devices
    if used < attached.devices:
        yield f"{used} of {attached.devices} devices are used."
    before, after = asked.workload, ran.workload
    if (before.batch, before.seq) != (after.batch, after.seq):
        yield f"Batch {before.batch:,} x {before.seq:,} -> {after.batch:,} x {after.seq:,} tokens{_share(asked, ran)}."
    if asked.microbatches != ran.microbatches:
        yield f"Microbatches {asked.microbatches} -> {ran.microbatches}."
    if model := result._model():
        why = "too slow here" if attached.virtual else "too large for the devices"
        sizes = ", ".join(f"{name} {old:,} -> {new:,}" for name, (old, new) in model.items())
        yield f"The whole model is {why}; one of the same structure runs: {sizes}."
    if asked.attention != ran.attention:
        yield f"Attention runs as {ran.attention}: {attached.platform} has no {asked.attention} kernel."
    if asked.compiler_flags and not ran.compiler_flags:
        yield f"The plan's compiler flags are {asked.machine.chip.name}'s and are left out."
    if before.matmul_dtype and after.matmul_dtype:
        yield f"The layers' matmuls are priced in {before.matmul_dtype} and run in {after.compute_dtype}."


def _share(asked: Plan, ran: Plan) -> str:
    """How many tokens a device has over what was asked, where it is not the same."""
    ratio = (ran.workload.tokens / ran.machine.devices) / (asked.workload.tokens / asked.machine.devices)
    return "" if 0.99 < ratio < 1.01 else f" ({ratio:.3g} times as many tokens a device)"
