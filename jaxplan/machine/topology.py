"""A machine: a topology of chips that one training step runs on. No JAX here.

A TPU machine is a slice, a box of chips some of whose axes close into rings, or several equal slices that the
data-centre network (DCN) joins. A GPU machine is hosts of chips, joined inside an NVLink (or xGMI) domain and,
beyond it, by the network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from jaxplan.machine.attached import AttachedCalibration
from jaxplan.machine.chip import Chip
from jaxplan.units import GB, format_bytes

FULL_MEMORY_FRACTION = 1.0  # TPU: the chip's usable bytes are already what the compiler grants


@dataclass(frozen=True)
class Machine:
    """A topology of chips.

    Attributes:
        name: `v5e 8x16`, `v5e 2x(8x16)`, `h100 16x8`.
        family: id of the catalogue file that it was made from.
        shape: TPU: chips along each physical axis of one slice. GPU: (hosts, chips per host).
        wraps: TPU: whether each axis closes into a ring. GPU: all False.
        domain_chips: chips that reach each other without the network: NVLink or xGMI domain; TPU: the whole
            slice.
        slices: TPU: how many slices of that shape there are. GPU: always 1 (all hosts are in one network).
        dcn_bytes_per_s_per_host: network of one host, one direction.
        dcn_fraction: the part of it that large collectives reached when measured.
        dcn_hop_latency_s: one step of a small collective between hosts.
        dcn_flat_chips: chips between which the network has its full rate; 0 for all of them.
        dcn_oversubscription: how many times less it carries, for each chip, from one such part to another.
        memory_fraction: part of a GPU's memory that JAX's allocator takes (XLA_PYTHON_CLIENT_MEM_FRACTION).
        topology_options: further arguments of `get_topology_desc`.
        compiler_flags: XLA options that production uses on this machine.
        attached: what `jaxplan calibrate` measured on such chips; None where published figures alone are known.
        notes: what was ambiguous in how the machine was named, to be said aloud.
        defaults: names of what was assumed (`chip`, `mesh`), to be said once.
    """

    name: str
    family: str
    chip: Chip
    shape: tuple[int, ...]
    wraps: tuple[bool, ...]
    chips_per_host: int
    domain_chips: int
    dcn_bytes_per_s_per_host: float
    dcn_fraction: float = 1.0
    dcn_hop_latency_s: float = 0.0
    memory_fraction: float = FULL_MEMORY_FRACTION
    topology_name: str = ""
    topology_options: Mapping[str, Any] = field(default_factory=dict)
    compiler_flags: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)
    defaults: tuple[str, ...] = field(default=(), compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    slices: int = 1
    dcn_flat_chips: int = 0
    dcn_oversubscription: float = 1.0
    attached: AttachedCalibration | None = None

    def __post_init__(self) -> None:
        if self.slices < 1 or (self.slices > 1 and self.chip.kind != "tpu"):
            raise ValueError(f"{self.name}: slices must be positive, and 1 on GPUs, got {self.slices}")
        if not self.shape or min(self.shape) < 1 or len(self.wraps) != len(self.shape):
            raise ValueError(
                f"{self.name}: shape must be positive, with one wrap each, got {self.shape}, {self.wraps}"
            )
        if self.chips_per_host < 1 or self.chips % self.chips_per_host:
            raise ValueError(f"{self.name}: {self.chips} chips are not whole hosts of {self.chips_per_host}")
        if self.domain_chips < 1 or self.chips % self.domain_chips:
            raise ValueError(f"{self.name}: {self.chips} chips are not whole domains of {self.domain_chips}")
        if self.dcn_flat_chips < 0 or self.dcn_oversubscription < 1:
            raise ValueError(
                f"{self.name}: dcn_flat_chips must not be negative and dcn_oversubscription at least 1, "
                f"got {self.dcn_flat_chips}, {self.dcn_oversubscription}"
            )
        if not 0 < self.memory_fraction <= 1 or not 0 < self.dcn_fraction <= 1:
            raise ValueError(
                f"{self.name}: fractions must be in (0, 1], got {self.memory_fraction}, {self.dcn_fraction}"
            )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._key == other._key

    @cached_property
    def _key(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def chips(self) -> int:
        """All chips, of every slice."""
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """JAX devices: two a chip on tpu7x, one elsewhere."""
        return self.chips * self.chip.devices_per_chip

    @property
    def mesh(self) -> str:
        """The physical shape, as `--mesh` takes it: `8x16`, or `2x(8x16)` where there are several slices."""
        shape = "x".join(map(str, self.shape))
        return f"{self.slices}x({shape})" if self.slices > 1 else shape

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def devices_per_host(self) -> int:
        return self.chips_per_host * self.chip.devices_per_chip

    @property
    def kind(self) -> str:
        return self.chip.kind

    @property
    def calibrated_by(self) -> str | None:
        """What measured the machine's rates (device, date, name); None where published figures are all there is."""
        return None if self.attached is None else self.attached.said

    @property
    def platform(self) -> str:
        """What `get_topology_desc` calls the compiler: `tpu`, `cuda`, or `rocm` (for which there is none); `cpu`."""
        if self.chip.kind in ("tpu", "cpu"):
            return self.chip.kind
        return "cuda" if self.chip.target is not None else "rocm"

    def device_flops_per_s(self, dtype: str) -> float:
        """Dense matrix peak of one device for operands of `dtype`, in FLOP/s."""
        return self.chip.flops_per_s(dtype) / self.chip.devices_per_chip

    @property
    def device_hbm_bytes(self) -> int:
        """Memory of one device that a program can have, in bytes; the arithmetic is `memory_note`."""
        return math.floor(self.chip.hbm_usable_bytes / self.chip.devices_per_chip * self.memory_fraction)

    @property
    def device_hbm_bytes_per_s(self) -> float:
        return self.chip.hbm_bytes_per_s / self.chip.devices_per_chip

    @property
    def device_host_bytes_per_s(self) -> float | None:
        """One direction between one device and its host's memory; None where nobody says."""
        rate = self.chip.host_bytes_per_s
        return None if rate is None else rate / self.chip.devices_per_chip

    @property
    def memory_note(self) -> str:
        """How `device_hbm_bytes` comes about, in one line."""
        total = self.chip.hbm_usable_bytes // self.chip.devices_per_chip
        if self.chip.kind == "tpu":
            source = self.chip.sources.get("hbm_usable_bytes", "source in the catalogue")
            return f"{format_bytes(total)} a device: what the TPU compiler grants ({source})"
        if self.chip.kind == "cpu":
            return f"{format_bytes(total)} a device: its share of the host's memory"
        return (
            f"{total:,} B x {self.memory_fraction:g} = {self.device_hbm_bytes:,} B: what JAX takes "
            "(XLA_PYTHON_CLIENT_MEM_FRACTION); the rest is for NCCL, cuDNN and CUDA graphs"
        )

    def describe(self) -> str:
        """The machine in one line, as `search` prints it."""
        size = f"{self.chips} chip{'s' if self.chips > 1 else ''}, {format_bytes(self.chip.hbm_bytes)} each"
        shape = "x".join(map(str, self.shape))
        hosts = f"{self.hosts} host{'s' if self.hosts > 1 else ''}"
        if self.slices > 1:
            hosts += f", joined by data-centre network ({self.dcn_bytes_per_s_per_host / GB:g} GB/s a host)"
            shape = f"{self.slices} slices of {shape}"
        if self.chip.kind == "tpu":
            sides = sorted(zip(self.wraps, self.shape, strict=True), reverse=True)
            words = [f"{n} {'wraps' if wraps else 'does not'}" for wraps, n in sides]
            torus = f"ICI {'torus' if any(self.wraps) else 'mesh'} ({', '.join(dict.fromkeys(words))})"
            torus = torus if math.prod(self.shape) > 1 else "no ICI"
            return f"{self.chip.name} {shape}: {size}, {torus}, {hosts}"
        if self.chip.kind == "cpu":
            return f"{self.chip.name}: {self.chips} virtual CPU devices, {format_bytes(self.chip.hbm_bytes)} each"
        domain = "one domain" if self.domain_chips == self.chips else f"domains of {self.domain_chips}"
        return f"{self.chip.name} {shape}: {size}, {hosts} of {self.chips_per_host}, {domain}"

    def to_json(self) -> dict[str, Any]:
        """Everything that decides a plan, as plain data (no sources, notes, defaults)."""
        skip = ("chip", "notes", "defaults", "sources", "attached")
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}
        lists = {k: list(data[k]) for k in ("shape", "wraps")}
        maps = {k: dict(data[k]) for k in ("topology_options", "compiler_flags")}
        counts = {"chips": self.chips, "devices": self.devices, "hosts": self.hosts}
        known = {} if self.attached is None else {"attached": self.attached.to_json()}
        return {**data, **lists, **maps, **counts, "chip": self.chip.to_json(), **known}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        attached = data.get("attached")
        return cls(
            **{
                **values,
                "chip": Chip.from_json(data["chip"]),
                "shape": tuple(data["shape"]),
                "wraps": tuple(data["wraps"]),
                "attached": None if attached is None else AttachedCalibration.from_json(attached),
            }
        )
