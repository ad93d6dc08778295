"""The devices that a plan's mesh is made of: attached ones, or given ones. Imports JAX when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.errors import InputError
from jaxplan.machine.device_kind import same_chip
from jaxplan.machine.placement import place
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import Plan

if TYPE_CHECKING:
    from jax.sharding import Mesh

# what JAX calls the platform of a chip's kind
PLATFORMS = {"tpu": ("tpu",), "gpu": ("gpu", "cuda", "rocm"), "cpu": ("cpu",)}


def mesh(plan: Plan, devices: Sequence[Any] | None, virtual: bool) -> Mesh:
    """A mesh of the plan's axes, every device where the plan's placement puts it; its axes are `Auto`.

    Args:
        devices: the devices to take instead of the attached ones: any order, those of a compile-only
            topology too.
        virtual: take the host's CPU devices as stand-ins.

    Raises:
        InputError: the devices are not as many as the plan's, or the attached machine is another one.
    """
    import jax
    from jax.sharding import AxisType, Mesh

    count = plan.machine.devices
    if virtual:
        chosen = list(jax.devices("cpu"))[:count]
    elif devices is None:
        chosen = list(jax.devices())
        _check_attached(plan.machine, chosen)
    else:
        chosen = list(devices)
    if len(chosen) != count or len(set(chosen)) != count:
        raise InputError(
            f"{len(set(chosen))} {'virtual CPU devices' if virtual else 'devices'} for {plan.machine.name}",
            f"{count} different devices",
            virtual_hint(count) if virtual else "",
        )
    table = np.empty(count, dtype=object)
    table[:] = sorted(chosen, key=canonical)
    order = place(plan.machine, plan.sizes).order
    return Mesh(table[order], tuple(plan.sizes), axis_types=(AxisType.Auto,) * len(plan.sizes))


def canonical(device: Any) -> tuple[int, ...]:
    """Sort key of the machine's canonical order (`machine.placement`): TPU by z, y, x, core; others by id."""
    coords = getattr(device, "coords", None)
    if device.platform == "tpu" and coords is not None:
        return (
            getattr(device, "slice_index", 0) or 0,
            *reversed(tuple(coords)),
            getattr(device, "core_on_chip", 0),
        )
    return (device.id,)


def virtual_hint(count: int) -> str:
    """How to get that many virtual CPU devices."""
    return (
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count} with JAX_PLATFORMS=cpu in the environment "
        "before Python starts, and plan.mesh(virtual=True)"
    )


def _check_attached(machine: Machine, attached: Sequence[Any]) -> None:
    first = attached[0]
    same = first.platform in PLATFORMS[machine.kind]
    same = same and (machine.kind == "cpu" or same_chip(machine.chip, first.device_kind))
    if same and len(attached) == machine.devices:
        return
    raise InputError(
        f"attached here: {len(attached)} x {first.device_kind} ({first.platform}); "
        f"the plan is for {machine.name}: {machine.devices} x {machine.chip.name} ({machine.platform})",
        "the plan's machine",
        f"plan.mesh(devices=...) with {machine.devices} devices of your choice, or, on virtual CPU devices, "
        + virtual_hint(machine.devices),
    )
