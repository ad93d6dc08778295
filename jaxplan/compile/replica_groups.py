"""Who takes part in a collective: replica groups in each of their five spellings, and which mesh axes they
run along.

    {{0,1},{2,3}}                                                explicit lists
    [16,8]<=[128]                                                iota: groups, members <= device ids in order
    [16,8]<=[8,16]T(1,0)                                         iota, transposed
    mesh['a'=8,'b'=16] {'a'}                                     axes of a mesh ('a':(2)4 is a sub-axis: 4
    after 2) mesh['a'=8,'b'=16], device_ids=([16,8]T(1,0)) {'a'}          axes of a mesh whose devices are
    in another order

and `{}`: all devices. (openxla/xla, hlo/ir/collective_device_list.cc and tile_assignment.cc.) Texts repeat,
and at 131,072 devices they are long, so each is read once and kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

from jaxplan.compile.hlo import HloError, Instruction

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\((.*?)\))?\s*\{([^}]*)\}")
_TILE = re.compile(r"(?:\[[\d,]+\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\)?)?$")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_KEY = "replica_groups="
_PAIRS_KEY = "source_target_pairs="


def group_text(instruction: Instruction) -> str | None:
    """The text of a collective's replica groups, as printed; None where it has none."""
    text = instruction.attribute_text
    start = text.find(_KEY)
    if start < 0:
        return None
    start += len(_KEY)
    if text.startswith("mesh", start):
        return text[start : text.index("}", start) + 1]
    if text.startswith("{{", start):
        return text[start : text.index("}}", start) + 2]
    match = _IOTA.match(text, start)
    if match:
        return match[0]
    if text.startswith("{}", start):
        return "{}"
    raise HloError(
        f"replica groups of {instruction.name} are spelled in an unknown way: {text[start : start + 80]!r}"
    )


def replica_groups(text: str, devices: int) -> np.ndarray:
    """Groups of device positions, int64[groups, members], read-only.

    Args:
        text: one of the spellings above.
        devices: how many devices run the module (what `{}` means).

    Raises:
        HloError: an unknown spelling, or groups of unequal sizes.
    """
    return _read_groups(text, devices if text == "{}" else 0)


@lru_cache(maxsize=4096)
def _read_groups(text: str, devices: int) -> np.ndarray:
    if text == "{}":
        groups = np.arange(devices)[None]
    elif text.startswith("{{"):
        groups = _explicit(text)
    elif text.startswith("mesh"):
        groups = _from_mesh(text)
    else:
        match = _IOTA.fullmatch(text)
        if not match:
            raise HloError(f"replica groups are spelled in an unknown way: {text[:80]!r}")
        shape = _integers(match[1])
        tiles = _iota(match[2], match[3])
        if math.prod(shape) != tiles.size:
            raise HloError(f"replica groups {text[:80]!r} hold {math.prod(shape)} devices of {tiles.size}")
        groups = tiles.reshape(shape[0], -1) if len(shape) > 1 else tiles.reshape(1, -1)
    groups.flags.writeable = False
    return groups


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _integers(shape)
    tiles = np.arange(math.prod(sizes)).reshape(sizes)
    return tiles.transpose(_integers(order)) if order else tiles


def _explicit(text: str) -> np.ndarray:
    body = text[2:-2]
    groups = body.count("},{") + 1
    members = np.fromstring(body.replace("},{", ","), dtype=np.int64, sep=",")
    first = body.partition("}")[0].count(",") + 1
    if members.size != groups * first or any(part.count(",") + 1 != first for part in body.split("},{")):
        raise HloError(f"replica groups of unequal sizes: {text[:80]!r}")
    return members.reshape(groups, first)


def _from_mesh(text: str) -> np.ndarray:
    match = _MESH.fullmatch(text)
    if not match:
        raise HloError(f"replica groups are spelled in an unknown way: {text[:80]!r}")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
    wanted = [
        (name, int(before or 1), int(size or sizes.get(name, 0)))
        for name, before, size in _AXIS.findall(match[3])
    ]
    if any(name not in sizes or sizes[name] % (before * size) for name, before, size in wanted):
        raise HloError(f"replica groups name axes that their mesh lacks: {text[:80]!r}")
    places = [place for name, size in sizes.items() for place in _cuts(name, size, wanted)]
    tiles = _mesh_devices(match[2], math.prod(sizes.values()), text)
    tiles = tiles.reshape([end // start for _, start, end in places])
    over = [
        dim
        for name, before, size in wanted
        for dim, (axis, start, end) in enumerate(places)
        if axis == name and before <= start and end <= before * size
    ]
    keep = [dim for dim in range(tiles.ndim) if dim not in over]
    members = math.prod(tiles.shape[dim] for dim in over)
    return tiles.transpose(keep + over).reshape(-1, members).copy()


def _cuts(name: str, size: int, wanted: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """An axis cut at the ends of every wanted sub-axis: (axis, product before the part, product with it)."""
    ends = {1, size}
    for axis, before, part in wanted:
        if axis == name:
            ends |= {before, before * part}
    points = sorted(ends)
    return [(name, start, end) for start, end in pairwise(points)] or [(name, 1, 1)]


def _mesh_devices(text: str | None, count: int, whole: str) -> np.ndarray:
    if text is None:
        return np.arange(count)
    match = _TILE.search(text)
    devices = _iota(match[1], match[2]).reshape(-1) if match else np.array(_integers(text))
    if devices.size != count:
        raise HloError(f"a mesh of {count} devices lists {devices.size}: {whole[:80]!r}")
    return devices


def source_target_pairs(instruction: Instruction) -> np.ndarray:
    """Pairs (source, target) of a collective-permute: int64[pairs, 2], read-only."""
    text = instruction.attribute_text
    start = text.find(_PAIRS_KEY)
    if start < 0:
        raise HloError(f"{instruction.name} ({instruction.opcode}) has no source_target_pairs")
    start += len(_PAIRS_KEY)
    if text.startswith("{}", start):
        return np.zeros((0, 2), np.int64)
    return _read_groups(text[start : text.index("}}", start) + 2], 0)


def mesh_axes(
    members: np.ndarray, axes: Mapping[str, int], order: np.ndarray | None = None
) -> tuple[tuple[str, ...], bool]:
    """The mesh axes along which members of a group differ, and whether the groups cover these axes wholly.

    Args:
        members: int[groups, members]; device positions, or pairs of a permute.
        axes: the mesh, name -> size, major first.
        order: int[sizes]: the number that the text uses for the device at each mesh place; by default the
        place
            itself, which is how a jitted program numbers its partitions.

    Returns:
        (axes, whole): axes in mesh order; whole is False where a group holds a part of an axis only, or where
        groups are not products of axes.

    Raises:
        HloError: the groups name devices outside the mesh.
    """
    sizes = tuple(axes.values())
    count = math.prod(sizes)
    if members.size and int(members.max()) >= count:
        raise HloError(f"a collective names device {int(members.max())}; the mesh {dict(axes)} has {count}")
    places = members if order is None else _places(order)[members]
    coordinates = np.unravel_index(places, sizes)
    varying = tuple(
        name for name, where in zip(axes, coordinates, strict=True) if (where != where[:, :1]).any()
    )
    return varying, math.prod(axes[name] for name in varying) == members.shape[1]


def _places(order: np.ndarray) -> np.ndarray:
    flat = np.asarray(order).reshape(-1)
    places = np.empty_like(flat)
    places[flat] = np.arange(flat.size)
    return places
