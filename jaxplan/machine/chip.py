"""A chip: one peak, one memory, one attachment to its neighbours. No JAX here.

Figures of the data sheet and figures that somebody measured are kept apart (`measured`), and every figure has
its source in `sources`, under the field's name (`matmul_flops_per_s.bfloat16` for an entry of a mapping).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxplan.machine.target_config import GpuTarget

Kind = Literal["tpu", "gpu", "cpu"]
Fabric = Literal["torus", "switch", "mesh", "pcie", "memory"]

NOT_NEGATIVE = ("hop_latency_s", "launch_latency_s", "clock_hz", "matmul_flops_per_cycle", "core_count", "mxu_size")
NOT_NEGATIVE += ("power_w",)


@dataclass(frozen=True, eq=True)
class Chip:
    """One kind of chip.

    Attributes:
        id: the short name that users type (`v5e`, `h100`).
        matmul_flops_per_s: dense peak per chip by dtype name (`bfloat16`, `float32`, `int8`, `float8`,
            `float4`).
        hbm_bytes: memory per chip as the data sheet gives it.
        hbm_usable_bytes: memory per chip that a program can have: on TPU what the compiler grants, on GPU
            what the driver shows (of which the allocator takes its fraction, see `Machine.memory_fraction`).
        hbm_bytes_per_s: memory bandwidth per chip.
        devices_per_chip: JAX devices per chip (2 on tpu7x).
        fabric: how chips of one slice or NVLink domain are joined: a `torus` of links, a `switch`, a full
            `mesh` of links between every two chips, their host's `pcie`, or (virtual CPU devices) its `memory`.
        link_bytes_per_s: one direction. Torus and mesh: of one link. Switch and PCIe: of one chip into it.
        links: links per chip (1 for a switch: they act as one).
        gathers_axis_by_axis: torus: whether all-gathers over several axes use the links of all (SparseCores do so).
        on_chip_bytes_per_s: one direction between the two devices of one chip; 0 where a chip is one device.
        host_bytes_per_s: one direction between a chip and its host's memory; None where nobody says.
        collective_fraction: the part of `link_bytes_per_s` that large collectives reached when measured.
        switch_reduce_fraction: the part that all-reduces in the switch reached of what its links could do, see
            `machine.cluster`; 0 where the switch cannot add.
        hop_latency_s: one step of a small collective between neighbours.
        launch_latency_s: fixed time of one collective, however small.
        clock_hz: of the compiler's cycle estimates; with `matmul_flops_per_cycle`, per device: array x clock
            = peak.
        core_count: GPU: streaming multiprocessors or compute units, between which a matmul's tiles are shared out.
        mxu_size: TPU: edge of one systolic array, to whose multiples a matmul's dims are padded.
        power_w: limit under which the clocks of `matmul_flops_per_s` are sustained or not; 0 where nobody says.
        measured: further figures that were measured, by name.
        target: what the NVIDIA compiler must know about the chip; None where there is no such compiler.
        sources: field name to source and date.
    """

    id: str
    name: str
    vendor: str
    kind: Kind
    matmul_flops_per_s: Mapping[str, float]
    hbm_bytes: int
    hbm_usable_bytes: int
    hbm_bytes_per_s: float
    fabric: Fabric
    link_bytes_per_s: float
    links: int = 1
    devices_per_chip: int = 1
    gathers_axis_by_axis: bool = False
    on_chip_bytes_per_s: float = 0.0
    host_bytes_per_s: float | None = None
    collective_fraction: float = 1.0
    switch_reduce_fraction: float = 0.0
    hop_latency_s: float = 0.0
    launch_latency_s: float = 0.0
    clock_hz: float = 0.0
    matmul_flops_per_cycle: float = 0.0
    core_count: int = 0
    mxu_size: int = 0
    power_w: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)
    target: GpuTarget | None = None
    aliases: tuple[str, ...] = ()
    notes: str = field(default="", compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in (
            "hbm_bytes",
            "hbm_usable_bytes",
            "hbm_bytes_per_s",
            "link_bytes_per_s",
            "links",
            "devices_per_chip",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{self.id}: {name} must be positive, got {getattr(self, name)}")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{self.id}: {name} must not be negative, got {getattr(self, name)}")
        for dtype, peak in self.matmul_flops_per_s.items():
            if peak <= 0:
                raise ValueError(f"{self.id}: matmul_flops_per_s.{dtype} must be positive, got {peak}")
        if "bfloat16" not in self.matmul_flops_per_s:
            raise ValueError(
                f"{self.id}: matmul_flops_per_s must have bfloat16, got {sorted(self.matmul_flops_per_s)}"
            )
        if self.host_bytes_per_s is not None and self.host_bytes_per_s <= 0:
            raise ValueError(f"{self.id}: host_bytes_per_s must be positive, got {self.host_bytes_per_s}")
        if not 0 < self.collective_fraction <= 1:
            raise ValueError(
                f"{self.id}: collective_fraction must be in (0, 1], got {self.collective_fraction}"
            )
        if not 0 <= self.switch_reduce_fraction <= 1 or (self.switch_reduce_fraction and self.fabric != "switch"):
            raise ValueError(
                f"{self.id}: switch_reduce_fraction must be in [0, 1], 0 without a switch, "
                f"got {self.switch_reduce_fraction}"
            )
        if self.target is not None and self.core_count != self.target.core_count:
            raise ValueError(
                f"{self.id}: core_count must be its target's {self.target.core_count}, got {self.core_count}"
            )
        if (self.devices_per_chip > 1) != (self.on_chip_bytes_per_s > 0):
            raise ValueError(f"{self.id}: on_chip_bytes_per_s goes with more than one device per chip")

    def __hash__(self) -> int:
        return hash((self.id, self.hbm_usable_bytes, self.hbm_bytes_per_s))

    def flops_per_s(self, dtype: str) -> float:
        """Dense matrix peak for operands of `dtype`, per chip, in FLOP/s; float16 runs at the rate of
        bfloat16.

        Raises:
            ValueError: the catalogue has no figure for that dtype.
        """
        known = self.matmul_flops_per_s
        key = "bfloat16" if dtype == "float16" else dtype
        key = "float8" if key.startswith("float8") else key
        if key not in known:
            raise ValueError(f"{self.id} has no matmul peak for {dtype}, only for {', '.join(sorted(known))}")
        return known[key]

    def to_json(self) -> dict[str, Any]:
        """Every figure as plain data, without the sources."""
        data = dataclasses.asdict(self)
        data["aliases"] = list(self.aliases)
        return {k: v for k, v in data.items() if k not in ("sources", "notes")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Chip:
        target = data.get("target")
        return cls(
            **{**data, "aliases": tuple(data["aliases"]), "target": GpuTarget(**target) if target else None}
        )
