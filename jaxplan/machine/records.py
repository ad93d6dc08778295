"""The records of chip and machine files, and what is made of them. No JAX here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.machine.chip import Chip, Fabric, Kind
from jaxplan.machine.family import Family
from jaxplan.machine.files import Figure, Record
from jaxplan.machine.slices import SliceRule
from jaxplan.machine.target_config import GpuTarget

WHOLE_FIGURES = ("hbm_bytes", "hbm_usable_bytes", "core_count", "mxu_size")


class ChipFile(Record):
    """`meshes/chips/*.toml`."""

    id: str
    name: str
    vendor: str
    kind: Kind
    fabric: Fabric
    aliases: tuple[str, ...] = ()
    links: int = 1
    devices_per_chip: int = 1
    gathers_axis_by_axis: bool = False
    notes: str = ""
    matmul_flops_per_s: Mapping[str, Figure]
    figures: Mapping[str, Figure]
    measured: Mapping[str, Figure] = {}
    target: Mapping[str, Any] | None = None


class Flag(Record):
    """One compiler flag that production uses."""

    value: str
    source: str
    date: str


class MachineFile(Record):
    """`meshes/machines/*.toml`."""

    id: str
    name: str
    kind: Literal["tpu-slice", "gpu-cluster"]
    chip: str
    default: bool = False
    chips_per_host: int
    domain_chips: int = 0
    slices: tuple[tuple[int, ...], ...] = ()
    wrap_length: int = 0
    cube: int = 0
    pod: tuple[int, ...] = ()
    max_chips: int = 0
    topology_prefix: str = ""
    topology_options: Mapping[str, Any] = {}
    chips_per_count: float = 1.0
    count_prefixes: tuple[str, ...] = ()
    dcn_bytes_per_s_per_host: Figure
    dcn_fraction: Figure | None = None
    dcn_hop_latency_s: Figure | None = None
    memory_fraction: Figure | None = None
    dcn_flat_chips: Figure | None = None
    dcn_oversubscription: Figure | None = None
    compiler_flags: Mapping[str, Flag] = {}


def read_chip(path: Path) -> Chip:
    """One chip file.

    Raises:
        InputError: the file is no chip.
    """
    record = files.read(path, ChipFile)
    _check_figures(path, record)
    figures: dict[str, Any] = {k: v.si for k, v in record.figures.items()}
    figures |= {k: round(figures[k]) for k in WHOLE_FIGURES if k in figures}
    target = {k: v for k, v in (record.target or {}).items() if k not in ("source", "date")}
    if "core_count" in target:  # said once: in the figures of a chip that has no target
        figures.setdefault("core_count", target["core_count"])
    try:
        return Chip(
            id=record.id,
            name=record.name,
            vendor=record.vendor,
            kind=record.kind,
            fabric=record.fabric,
            links=record.links,
            devices_per_chip=record.devices_per_chip,
            gathers_axis_by_axis=record.gathers_axis_by_axis,
            notes=record.notes,
            aliases=record.aliases,
            matmul_flops_per_s={k: v.si for k, v in record.matmul_flops_per_s.items()},
            measured={k: v.si for k, v in record.measured.items()},
            target=GpuTarget(**target) if target else None,
            sources=_chip_sources(record),
            **figures,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}", "the keys and ranges of the catalogue's own chips") from error


def _check_figures(path: Path, record: ChipFile) -> None:
    """Every figure by a name that `Chip` has, and none missing that it must have."""
    known = {f.name: f for f in dataclasses.fields(Chip) if f.name not in (*ChipFile.model_fields, "sources")}
    needed = [name for name, f in known.items() if f.default is f.default_factory is dataclasses.MISSING]
    for name in record.figures:
        if name not in known:
            raise InputError(f"{path}: key figures.{name} is not known", f"one of {', '.join(known)}")
    for name in needed:
        if name not in record.figures:
            raise InputError(f"{path}: key figures.{name} is missing", "a table of value, unit, source, date")


def _chip_sources(record: ChipFile) -> dict[str, str]:
    sources = {name: figure.citation for name, figure in record.figures.items()}
    sources |= {f"matmul_flops_per_s.{k}": v.citation for k, v in record.matmul_flops_per_s.items()}
    sources |= {f"measured.{k}": v.citation for k, v in record.measured.items()}
    if record.target:
        sources["target"] = f"{record.target.get('source', '')} [{record.target.get('date', '')}]"
        sources.setdefault("core_count", sources["target"])
    return sources


MACHINE_FIGURES = ("dcn_bytes_per_s_per_host", "dcn_fraction", "dcn_hop_latency_s", "memory_fraction")
MACHINE_FIGURES += ("dcn_flat_chips", "dcn_oversubscription")


def read_family(path: Path, chip: Callable[[str], Chip]) -> Family:
    """One machine file; `chip` finds the chip that it names (a path is relative to the file).

    Raises:
        InputError: the file is no machine.
    """
    record = files.read(path, MachineFile)
    try:
        own = read_chip(path.parent / record.chip) if files.looks_like_path(record.chip) else chip(record.chip)
    except InputError as error:
        raise InputError(f"{path}: key chip: {error.given}", error.expected, error.suggestion) from error
    given = {name: getattr(record, name) for name in MACHINE_FIGURES if getattr(record, name) is not None}
    fixed: dict[str, Any] = {name: figure.si for name, figure in given.items()}
    fixed |= {k: round(fixed[k]) for k in ("dcn_flat_chips",) if k in fixed}
    fixed["compiler_flags"] = {name: flag.value for name, flag in record.compiler_flags.items()}
    fixed["topology_options"] = dict(record.topology_options)
    flags = {f"compiler_flags.{k}": f"{v.source} [{v.date}]" for k, v in record.compiler_flags.items()}
    try:
        return Family(
            id=record.id,
            name=record.name,
            chip=own,
            chips_per_host=record.chips_per_host,
            domain_chips=record.domain_chips or record.chips_per_host,
            slices=_slice_rule(record),
            default=record.default,
            chips_per_count=record.chips_per_count,
            count_prefixes=record.count_prefixes,
            topology_prefix=record.topology_prefix,
            fixed=fixed,
            sources={name: figure.citation for name, figure in given.items()} | flags,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}", "the keys and ranges of the catalogue's own machines") from error


def _slice_rule(record: MachineFile) -> SliceRule | None:
    if record.kind == "gpu-cluster":
        return None
    if not record.slices:
        raise ValueError("key slices is missing: a tpu-slice lists its legal shapes")
    bound = record.max_chips or max(math.prod(shape) for shape in record.slices)
    return SliceRule(record.id, record.slices, bound, record.wrap_length, record.cube, record.pod)
