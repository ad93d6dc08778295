"""What is known: chips, machines and models, read from TOML. No JAX here.

`chip`, `machine` and `model` take a name of the catalogue, or the path of a user's own file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pydantic

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.machine.chip import Chip, Fabric, Kind
from jaxplan.machine.family import Family
from jaxplan.machine.files import Figure, Record
from jaxplan.machine.slices import SliceRule
from jaxplan.machine.target_config import GpuTarget
from jaxplan.machine.topology import Machine
from jaxplan.workload.shape import ModelShape

DEFAULT_CHIP = "v5e"
DEFAULT_MESH = "8x16"
MEMORY_FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"

_WHOLE = ("hbm_bytes", "hbm_usable_bytes")


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
    libtpu_host_shape: tuple[int, ...] = ()
    chips_per_count: float = 1.0
    count_prefixes: tuple[str, ...] = ()
    dcn_bytes_per_s_per_host: Figure
    dcn_fraction: Figure | None = None
    dcn_hop_latency_s: Figure | None = None
    memory_fraction: Figure | None = None
    compiler_flags: Mapping[str, Flag] = {}


def _chip_of(path: Path) -> Chip:
    record = files.read(path, ChipFile)
    named = {name: figure for name, figure in record.figures.items()}
    sources = {name: figure.citation for name, figure in named.items()}
    sources |= {f"matmul_flops_per_s.{k}": v.citation for k, v in record.matmul_flops_per_s.items()}
    sources |= {f"measured.{k}": v.citation for k, v in record.measured.items()}
    target = dict(record.target) if record.target else None
    if target:
        sources["target"] = f"{target.pop('source', '')} [{target.pop('date', '')}]"
    simple = record.model_dump(include={"id", "name", "vendor", "kind", "fabric", "links", "devices_per_chip", "notes"})
    try:
        return Chip(
            **simple,
            aliases=record.aliases,
            matmul_flops_per_s={k: v.si for k, v in record.matmul_flops_per_s.items()},
            measured={k: v.si for k, v in record.measured.items()},
            target=GpuTarget(**target) if target else None,
            sources=sources,
            **{k: round(v.si) if k in _WHOLE else v.si for k, v in named.items()},
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}", "the keys and ranges of the catalogue's own chips") from error


@cache
def _chips() -> dict[str, Chip]:
    root = files.folder("meshes/chips")
    return {name: _chip_of(root / f"{name}.toml") for name in files.names("meshes/chips")}


def chips() -> tuple[Chip, ...]:
    """Every chip of the catalogue."""
    return tuple(_chips().values())


def chip(id: str) -> Chip:
    """The chip with that id or alias, or the one in a TOML file.

    Raises:
        InputError: unknown; names what there is.
    """
    if files.looks_like_path(id):
        return _chip_of(Path(id))
    wanted = re.sub(r"[\s_]+", "-", id.strip().lower())
    for known in chips():
        if wanted == known.id or wanted in known.aliases:
            return known
    raise InputError(f"unknown chip {id!r}", f"one of {', '.join(c.id for c in chips())}", "`jaxplan catalog chips`")


def _family_of(path: Path) -> Family:
    record = files.read(path, MachineFile)
    beside = path.parent / record.chip if files.looks_like_path(record.chip) else None
    own = _chip_of(beside) if beside else chip(record.chip)
    figures = ("dcn_bytes_per_s_per_host", "dcn_fraction", "dcn_hop_latency_s", "memory_fraction")
    given = {name: getattr(record, name) for name in figures if getattr(record, name) is not None}
    fixed = {name: figure.si for name, figure in given.items()}
    fixed["compiler_flags"] = {name: flag.value for name, flag in record.compiler_flags.items()}
    fixed["topology_options"] = dict(record.topology_options)
    flags = {f"compiler_flags.{name}": f"{flag.source} [{flag.date}]" for name, flag in record.compiler_flags.items()}
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
    largest = max(record.slices, key=lambda shape: (len(shape), shape))
    bound = record.max_chips or _product(largest)
    return SliceRule(record.id, record.slices, bound, record.wrap_length, record.cube, record.pod)


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


@cache
def _families() -> dict[str, Family]:
    root = files.folder("meshes/machines")
    return {name: _family_of(root / f"{name}.toml") for name in files.names("meshes/machines")}


def families() -> tuple[Family, ...]:
    """Every family of machines of the catalogue."""
    return tuple(_families().values())


def family(name: str) -> Family:
    """The family with that id, the default one of a chip, or the one in a TOML file.

    Raises:
        InputError: unknown; names what there is.
    """
    if files.looks_like_path(name):
        return _family_of(Path(name))
    known = _families()
    if name.lower() in known:
        return known[name.lower()]
    try:
        wanted = chip(name)
    except InputError as error:
        raise InputError(f"unknown machine {name!r}", f"one of {', '.join(known)}", "`jaxplan catalog machines`") from error
    return _default_family(wanted)


def _default_family(wanted: Chip) -> Family:
    for candidate in families():
        if candidate.chip.id == wanted.id and candidate.default:
            return candidate
    raise InputError(f"the catalogue has no machine of {wanted.id}", "one of " + ", ".join(_families()))


_COUNT = re.compile(r"^(?P<prefix>[a-z][a-z0-9-]*?)-(?P<count>\d+)$")
_SHAPE = re.compile(r"^\d+(x\d+)*$")


def _counted(text: str) -> tuple[Family, int, str] | None:
    """Marketing names: `v5p-8` is 4 chips, `v4-256` 128, `v5litepod-8` 8, `h100-16` none."""
    match = _COUNT.match(text.strip().lower())
    if not match:
        return None
    for candidate in families():
        if match["prefix"] in candidate.count_prefixes:
            chips = int(match["count"]) * candidate.chips_per_count
            if chips != int(chips) or chips < 1:
                raise InputError(f"{text} is no {candidate.chip.name} slice: the number counts TensorCores, two a chip")
            said = f"{text} is {int(chips)} chips" + (" (the number counts TensorCores)" if chips != int(match["count"]) else "")
            return candidate, int(chips), said
    return None


def parse_shape(mesh: str) -> tuple[int, ...]:
    """`8x16` as (8, 16).

    Raises:
        InputError: not positive numbers joined by x.
    """
    text = mesh.strip().lower().replace("×", "x").replace("*", "x").replace(" ", "")
    if not _SHAPE.match(text) or any(int(n) == 0 for n in text.split("x")):
        raise InputError(
            f"--mesh {mesh!r} is not a shape",
            "positive numbers joined by x, such as 8x16 (TPU slice) or 16x8 (hosts x GPUs)",
            "`jaxplan catalog machines`",
        )
    return tuple(int(n) for n in text.split("x"))


def machine(mesh: str | None = None, chip: str | None = None, machine: str | None = None) -> Machine:
    """The machine that the user means.

    Args:
        mesh: the physical shape (`8x16`, `4x4x8`, `16x8`, `8`), with a prefix (`v5e:8x16`), or a product's name (`v5p-8`).
        chip: id or alias of a chip.
        machine: id of a family of machines, a path to a TOML file of one, or a product's name.

    Raises:
        InputError: unknown chip or machine, no legal slice, not numbers.
    """
    defaults: list[str] = []
    if mesh and ":" in mesh:
        prefix, mesh = mesh.split(":", 1)
        chip = chip or prefix
    counted = _counted(machine or "") or (_counted(mesh or "") if machine is None else None)
    if counted and (chip is None or _same_chip(chip, counted[0])):
        return _with_environment(counted[0].of_chips(counted[1], notes=(counted[2],)))
    if machine is not None:
        found = family(machine)
        if chip is not None and not _same_chip(chip, found):
            raise InputError(f"machine {found.id} has {found.chip.id} chips, not {chip}", f"--chip {found.chip.id} or none")
    else:
        if chip is None:
            chip = DEFAULT_CHIP
            defaults.append(f"chip {DEFAULT_CHIP} (--chip)")
        found = _of_own_chip(chip) if files.looks_like_path(chip) else _default_family(globals()["chip"](chip))
    if mesh is None:
        mesh = DEFAULT_MESH if found.slices and found.slices.dims == 2 else str(max(found.chips_per_host, found.domain_chips))
        defaults.append(f"mesh {mesh} (--mesh)")
    shape = parse_shape(mesh)
    if len(shape) == 1:
        return _with_environment(found.of_chips(shape[0], defaults=tuple(defaults)))
    return _with_environment(_made(found, shape, tuple(defaults)))


def _made(found: Family, shape: tuple[int, ...], defaults: tuple[str, ...]) -> Machine:
    try:
        return found.machine(shape, defaults=defaults)
    except InputError as error:
        if not any(word.startswith("chip ") for word in defaults):
            raise
        others = [f.chip.id for f in families() if f.slices and f.id != found.id and f.slices.dims == len(shape)
                  and f.slices.legal(shape)]
        if not others:
            raise
        raise InputError(error.given, suggestion=f"--chip {' or --chip '.join(others)}: {found.chip.id} is only the default") from error


def _same_chip(name: str, found: Family) -> bool:
    return (_chip_of(Path(name)) if files.looks_like_path(name) else globals()["chip"](name)).id == found.chip.id


def _of_own_chip(path: str) -> Family:
    """A user's own chip in a machine of the same kind as the catalogue's: v5e slices, or hosts of 8."""
    import dataclasses

    own = _chip_of(Path(path))
    like = "v5e" if own.kind == "tpu" else "dgx-h100"
    return dataclasses.replace(_families()[like], chip=own, id=own.id)


def _with_environment(found: Machine) -> Machine:
    """The memory fraction that the user's environment sets, on a GPU."""
    import dataclasses

    text = os.environ.get(MEMORY_FRACTION_VARIABLE)
    if found.kind != "gpu" or not text:
        return found
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise InputError(f"{MEMORY_FRACTION_VARIABLE} is {text!r}", "a fraction of the GPU's memory between 0 and 1")
    note = f"memory fraction {fraction:g} from {MEMORY_FRACTION_VARIABLE}"
    return dataclasses.replace(found, memory_fraction=fraction, notes=(*found.notes, note))
