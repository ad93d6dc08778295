"""Chips and families of machines by name, or from a user's own TOML file. No JAX here."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.machine.chip import Chip
from jaxplan.machine.family import Family
from jaxplan.machine.records import read_chip, read_family


@cache
def _chips() -> dict[str, Chip]:
    root = files.folder("meshes/chips")
    return {name: read_chip(root / f"{name}.toml") for name in files.names("meshes/chips")}


def chips() -> tuple[Chip, ...]:
    """Every chip of the catalogue."""
    return tuple(_chips().values())


def chip(id: str) -> Chip:
    """The chip with that id or alias, or the one in a TOML file.

    Raises:
        InputError: unknown; names what there is.
    """
    if files.looks_like_path(id):
        return read_chip(Path(id))
    wanted = re.sub(r"[\s_]+", "-", id.strip().lower())
    for known in chips():
        if wanted == known.id or wanted in known.aliases:
            return known
    names = ", ".join(known.id for known in chips())
    raise InputError(f"unknown chip {id!r}", f"one of {names}", "`jaxplan catalog chips`")


@cache
def _families() -> dict[str, Family]:
    root = files.folder("meshes/machines")
    return {name: read_family(root / f"{name}.toml", chip) for name in files.names("meshes/machines")}


def families() -> tuple[Family, ...]:
    """Every family of machines of the catalogue."""
    return tuple(_families().values())


def family(name: str) -> Family:
    """The family with that id, the default one of a chip, or the one in a TOML file.

    Raises:
        InputError: unknown; names what there is.
    """
    if files.looks_like_path(name):
        return read_family(Path(name), chip)
    known = _families()
    if name.strip().lower() in known:
        return known[name.strip().lower()]
    try:
        wanted = chip(name)
    except InputError as error:
        raise InputError(
            f"unknown machine {name!r}", f"one of {', '.join(known)}", "`jaxplan catalog machines`"
        ) from error
    return family_of_chip(wanted)


def family_of_chip(wanted: Chip) -> Family:
    """The family that a chip stands for when no machine is named, with this very chip in it.

    Raises:
        InputError: no family of the catalogue has a chip with that id.
    """
    for candidate in families():
        if candidate.chip.id == wanted.id and candidate.default:
            return dataclasses.replace(candidate, chip=wanted)
    raise InputError(
        f"the catalogue has no machine of {wanted.id}",
        "a TOML file of a machine of that chip (--machine), such as those in meshes/machines",
    )
