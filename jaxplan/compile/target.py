"""From a machine to the devices of its compiler, in the placement's order. Used in workers: imports JAX when
called.

Device order is the machine's canonical one (`jaxplan.machine.placement`): TPU devices by their physical
coordinates, the core of a chip fastest, then x, y, z, slice; GPUs and virtual CPU devices by their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.compile.environment import MAX_HOST_DEVICES, Platform
from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis, Plan

if TYPE_CHECKING:
    from jax.sharding import Mesh


TPU_COORDINATES = 3     # of a device, as libtpu gives them


class TargetError(ValueError):
    """The compiler's idea of the machine is not ours: a bug in the catalogue, or a version we do not know."""


def host_devices(plan: Plan) -> int:
    """Virtual CPU devices that a worker for this plan has (at most what the host's XLA can)."""
    return min(plan.machine.devices, MAX_HOST_DEVICES)


def devices(machine: Machine, platform: Platform) -> list[Any]:
    """All devices of `machine` as `platform`'s compiler knows them, in canonical order.

    Raises:
        TargetError: another number of devices, or other coordinates, than the machine has.
    """
    found = {"cpu": _host_devices, "tpu": _tpu_devices, "cuda": _cuda_devices}[platform](machine)
    if len(found) != machine.devices:
        raise TargetError(
            f"{machine.name}: the {platform} compiler knows {len(found)} devices, expected {machine.devices}"
        )
    return found


def _host_devices(machine: Machine) -> list[Any]:
    import jax

    return jax.devices("cpu")[: machine.devices]


def _tpu_devices(machine: Machine) -> list[Any]:
    from jax.experimental import topologies

    options = dict(machine.topology_options)
    if machine.slices > 1:
        options["num_slices"] = machine.slices
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=machine.topology_name, **options
    ).devices
    flat = (1,) * (TPU_COORDINATES - len(machine.shape))    # libtpu gives three coordinates, also on two axes
    lengths = (machine.chip.devices_per_chip, *machine.shape, *flat, machine.slices)
    table: dict[int, Any] = {}
    for device in found:
        # `coords` repeat in every slice; where there is one slice, its index may be missing
        place = (getattr(device, "core_on_chip", 0), *device.coords, getattr(device, "slice_index", 0) or 0)
        if len(place) != len(lengths) or any(at >= n for at, n in zip(place, lengths, strict=True)):
            raise TargetError(f"{machine.name}: the TPU compiler puts a device at (core, x, y, z, slice) = {place}")
        table[sum(at * math.prod(lengths[:i]) for i, at in enumerate(place))] = device
    return [table[index] for index in sorted(table)]


def _cuda_devices(machine: Machine) -> list[Any]:
    from jax.experimental import topologies

    from jaxplan.machine.target_config import target_config

    found = topologies.get_topology_desc(
        platform="cuda",
        topology_name=machine.name,
        topology=f"{machine.hosts}x{machine.devices_per_host}x1",
        target_config=target_config(machine.chip),
        **dict(machine.topology_options),
    ).devices
    return sorted(found, key=lambda device: device.id)


def mesh(
    machine: Machine, sizes: Mapping[str, int], platform: Platform, order: np.ndarray | None = None
) -> Mesh:
    """The plan's mesh over the compiler's devices.

    Args:
        sizes: mesh axis to size, outermost first.
        order: canonical device indices with the mesh's shape (a placement's `order`); None is row-major.
    """
    from jax.sharding import Mesh

    shape = tuple(sizes.values())
    indices = np.arange(machine.devices) if order is None else np.asarray(order)
    if indices.size != machine.devices or indices.size != math.prod(shape):
        raise ValueError(
            f"mesh {dict(sizes)} of {machine.name}: expected {machine.devices} indices, got {indices.size}"
        )
    table = np.empty(machine.devices, dtype=object)
    table[:] = devices(machine, platform)
    return Mesh(table[indices.reshape(shape)], tuple(sizes))    # Auto axes: constraints are allowed on them


@dataclass(frozen=True)
class HostView:
    """The plan that the partition tier compiles in another one's stead, and what must be said about it.

    Attributes:
        plan: same layout; attention that the platform can compile; possibly fewer replicas.
        shrunk: the factor by which the `data` axis and the batch were divided.
    """

    plan: Plan
    platform: Platform
    shrunk: int = 1
    note: str = ""


def host_view(plan: Plan, cuda_available: bool) -> HostView | None:
    """How to partition a plan on this host, or None where it cannot be done.

    Up to 2,048 devices the host's own compiler does it. Beyond, the GPU compiler does (for a machine of
    NVIDIA chips), or the host's with fewer replicas: `data` only copies what one replica does, as long as
    ZeRO-1 does not shard the optimizer over it.
    """
    count = plan.machine.devices
    if count <= MAX_HOST_DEVICES:
        return HostView(_on_host(plan), "cpu")
    if cuda_available and plan.machine.chip.target is not None:
        note = f"partitioned by the GPU compiler: {count:,} devices are too many for the host's"
        return HostView(plan, "cuda", 1, note)
    factor = shrink_factor(count, plan.size_of_role("data"))
    if factor is None or plan.zero1:
        return None
    note = f"partitioned with the data axis (replicas) and the batch divided by {factor}"
    return HostView(_on_host(shrunk(plan, factor)), "cpu", factor, note)


def _on_host(plan: Plan) -> Plan:
    """The plan as the host can compile it: the target's attention kernel and flags mean nothing to it."""
    attention = "blockwise" if plan.workload.model is not None else plan.attention
    return replace(plan, attention=attention, compiler_flags={})


def shrink_factor(devices: int, replicas: int) -> int | None:
    """The smallest divisor of `replicas` that brings the devices down to what the host's XLA can have."""
    wanted = -(-devices // MAX_HOST_DEVICES)
    return next((f for f in range(wanted, replicas + 1) if replicas % f == 0 and devices % f == 0), None)


def shrunk(plan: Plan, factor: int) -> Plan:
    """The plan with `data` and the batch divided by `factor`, on a stand-in machine of as many chips."""
    machine = plan.machine
    chips = machine.chips // factor
    stand_in = replace(
        machine,
        name=f"{machine.name} / {factor}",
        shape=(chips, 1) if machine.kind == "gpu" else (chips,),
        wraps=(False, False) if machine.kind == "gpu" else (False,),
        slices=1,
        chips_per_host=1,
        domain_chips=1,
    )
    axes = tuple(_divided(axis, factor) if axis.role == "data" else axis for axis in plan.axes)
    workload = replace(plan.workload, batch=plan.workload.batch // factor)
    return replace(plan, machine=stand_in, axes=axes, workload=workload)


def _divided(axis: MeshAxis, factor: int) -> MeshAxis:
    return replace(axis, size=axis.size // factor)
