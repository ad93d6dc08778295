"""What the CUDA compiler must know about a GPU that is not there: a GpuTargetConfig text proto. No JAX here.

An empty text kills the compiling process and an unknown field is refused, so the text is written from typed
figures whose presence and signs are proved first. The message is `stream_executor.GpuTargetConfigProto` of
XLA (`xla/stream_executor/device_description.proto`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxplan.machine.chip import Chip


@dataclass(frozen=True)
class GpuTarget:
    """The device description of one NVIDIA GPU, in the units of the proto's own fields (bytes, bytes/s,
    GHz)."""

    device_name: str
    compute_capability: str
    core_count: int
    fpus_per_core: int
    clock_rate_ghz: float
    memory_bandwidth: int
    device_memory_size: int
    l2_cache_size: int
    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    shared_memory_per_block: int = 49_152
    registers_per_core_limit: int = 65_536
    registers_per_block_limit: int = 65_536
    threads_per_block_limit: int = 1_024
    threads_per_core_limit: int = 2_048
    threads_per_warp: int = 32
    block_dim_limit_x: int = 2_147_483_647
    block_dim_limit_y: int = 65_535
    block_dim_limit_z: int = 65_535
    dnn_version: str = "9.10.0"
    runtime_version: str = "13.0.0"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, str) and value <= 0:
                raise ValueError(f"{self.device_name}: {f.name} must be positive, got {value}")
        for name, parts in (("compute_capability", 2), ("dnn_version", 3), ("runtime_version", 3)):
            value = getattr(self, name).split(".")
            if len(value) != parts or not all(part.isdigit() for part in value):
                raise ValueError(
                    f"{self.device_name}: {name} must be {parts} numbers with dots, got {getattr(self, name)}"
                )
        if '"' in self.device_name or "\\" in self.device_name:
            raise ValueError(f"device_name must not hold quotes or backslashes, got {self.device_name}")


_NOT_IN_DEVICE_INFO = ("device_name", "compute_capability", "dnn_version", "runtime_version")


def text_proto(target: GpuTarget) -> str:
    """The text proto of one GPU, as `get_topology_desc(platform="cuda", target_config=...)` takes it."""
    major, minor = target.compute_capability.split(".")
    lines = [
        f"  {f.name}: {getattr(target, f.name)}" for f in fields(target) if f.name not in _NOT_IN_DEVICE_INFO
    ]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    versions = [
        "{name} {{ major: {} minor: {} patch: {} }}".format(*getattr(target, field).split("."), name=name)
        for name, field in (("dnn_version_info", "dnn_version"), ("runtime_version", "runtime_version"))
    ]
    name = f'device_description_str: "{target.device_name}"'
    return "\n".join(["gpu_device_info {", *lines, "}", 'platform_name: "CUDA"', *versions, name, ""])


def target_config(chip: Chip) -> str:
    """The target config of `chip`.

    Raises:
        ValueError: the chip has no CUDA compiler (a TPU, an AMD GPU), or its catalogue file gives no target.
    """
    if chip.target is None:
        raise ValueError(
            f"{chip.id} has no [target] in its catalogue file: the CUDA compiler cannot compile for it"
        )
    return text_proto(chip.target)
