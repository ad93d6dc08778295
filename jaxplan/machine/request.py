"""From what the user typed to a machine. No JAX here."""

from __future__ import annotations

import dataclasses
import os
import re

from jaxplan.errors import InputError
from jaxplan.machine import lookup
from jaxplan.machine.family import Family
from jaxplan.machine.topology import Machine

DEFAULT_CHIP = "v5e"
DEFAULT_MESH = "8x16"
MEMORY_FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"

_COUNT = re.compile(r"^(?P<prefix>[a-z][a-z0-9-]*?)-(?P<count>\d+)$")
_SHAPE = re.compile(r"^\d+(x\d+)*$")
_SLICES = re.compile(r"^(?P<prefix>[^:()]*:)?(?P<count>\d+)x\((?P<slice>[^()]*)\)$")


def machine(
    mesh: str | None = None, chip: str | None = None, machine: str | None = None, slices: int | None = None
) -> Machine:
    """The machine that the user means.

    Args:
        mesh: the physical shape (`8x16`, `4x4x8`, `16x8`, `8`), with a prefix (`v5e:8x16`), or a product's
            name (`v5p-8`); in parentheses after a number, of each of so many slices (`2x(8x16)`).
        chip: id or alias of a chip.
        machine: id of a family of machines, the path of a TOML file of one, or a product's name.
        slices: how many slices of `mesh` there are.

    Raises:
        InputError: unknown chip or machine, no legal slice, not numbers, two different numbers of slices.
    """
    count, mesh = _slices(mesh, slices)
    if mesh and ":" in mesh:
        prefix, mesh = mesh.split(":", 1)
        chip = chip or prefix
    product = _product(machine or mesh or chip or "")
    if product is not None:
        return with_environment(_of_product(product, mesh if machine else None, chip, count))
    found, defaults = _family(chip, machine)
    if mesh is None:
        mesh = DEFAULT_MESH if found.slices and found.slices.dims == 2 else str(found.domain_chips)
        defaults = (*defaults, "mesh")
    return with_environment(_made(found, parse_shape(mesh), defaults, count))


def _slices(mesh: str | None, given: int | None) -> tuple[int, str | None]:
    """(how many slices, the shape of one), from `--mesh` and `--slices`."""
    if given is not None and given < 1:
        raise InputError(f"--slices {given}", "at least 1")
    match = _SLICES.match(_plain(mesh)) if mesh is not None else None
    if match is None:
        return given or 1, mesh
    count = int(match["count"])
    if count < 1:
        raise InputError(f"--mesh {mesh!r} has no slices", "at least 1, such as 2x(8x16)")
    if given is not None and given != count:
        raise InputError(
            f"--mesh {mesh} is {count} slices, and --slices is {given}", "the same number, or only one of both"
        )
    return count, (match["prefix"] or "") + match["slice"]


def _plain(mesh: str) -> str:
    """One spelling of a shape: small letters, `x` for a times sign, no spaces."""
    return mesh.strip().lower().replace("×", "x").replace("*", "x").replace(" ", "")


def parse_shape(mesh: str) -> tuple[int, ...]:
    """`8x16` as (8, 16).

    Raises:
        InputError: not positive numbers joined by x.
    """
    text = _plain(mesh)
    if not _SHAPE.match(text) or any(int(n) == 0 for n in text.split("x")):
        raise InputError(
            f"--mesh {mesh!r} is not a shape",
            "positive numbers joined by x, such as 8x16 (TPU slice), 2x(8x16) (two slices) or 16x8 (hosts x GPUs)",
            "`jaxplan catalog machines`",
        )
    return tuple(int(n) for n in text.split("x"))


def with_environment(found: Machine) -> Machine:
    """The memory fraction that the user's environment sets, on a GPU."""
    text = os.environ.get(MEMORY_FRACTION_VARIABLE)
    if found.kind != "gpu" or not text:
        return found
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise InputError(
            f"{MEMORY_FRACTION_VARIABLE} is {text!r}", "a fraction of the GPU's memory between 0 and 1"
        )
    note = f"memory fraction {fraction:g} from {MEMORY_FRACTION_VARIABLE}"
    return dataclasses.replace(found, memory_fraction=fraction, notes=(*found.notes, note))


def _family(chip: str | None, machine: str | None) -> tuple[Family, tuple[str, ...]]:
    if machine is None:
        default = () if chip else ("chip",)
        return lookup.family_of_chip(lookup.chip(chip or DEFAULT_CHIP)), default
    found = lookup.family(machine)
    if chip is not None and lookup.chip(chip).id != found.chip.id:
        raise InputError(
            f"machine {found.id} has {found.chip.id} chips, not {chip}", f"--chip {found.chip.id}, or none"
        )
    return found, ()


def _product(text: str) -> tuple[Family, int, str] | None:
    """Products are named by a count: `v5p-8` is 4 chips, `v4-256` is 128, `v5litepod-8` is 8."""
    match = _COUNT.match(text.strip().lower())
    if match is None:
        return None
    for candidate in lookup.families():
        if match["prefix"] in candidate.count_prefixes:
            chips = int(match["count"]) * candidate.chips_per_count
            if chips < 1 or chips != int(chips):
                raise InputError(
                    f"{text} is no {candidate.chip.name} slice: the number counts TensorCores, two a chip"
                )
            counts = " (the number counts TensorCores)" if candidate.chips_per_count != 1 else ""
            return candidate, int(chips), f"{text} is {int(chips)} chips{counts}"
    return None


def _of_product(
    product: tuple[Family, int, str], mesh: str | None, chip: str | None, slices: int
) -> Machine:
    found, chips, said = product
    if chip is not None and _product(chip) is None and lookup.chip(chip).id != found.chip.id:
        raise InputError(f"{said}, of {found.chip.name}, not of {chip}", f"--chip {found.chip.id}, or none")
    made = (
        found.of_chips(chips, notes=(said,), slices=slices)
        if mesh is None
        else found.machine(parse_shape(mesh), notes=(said,), slices=slices)
    )
    if made.chips != chips * slices:
        raise InputError(
            f"{said}, and --mesh {mesh} is {made.chips // slices}",
            "the same number of chips, or only one of both",
        )
    return made


def _made(found: Family, shape: tuple[int, ...], defaults: tuple[str, ...], slices: int) -> Machine:
    """The machine; where only the chip was assumed, a refusal names the chips that have such a slice."""
    try:
        if len(shape) == 1:
            return found.of_chips(shape[0], (), defaults, slices)
        return found.machine(shape, (), defaults, slices)
    except InputError as error:
        assumed = "chip" in defaults and not (found.slices and found.slices.legal(shape))
        others = [
            f"--chip {other.chip.id}"
            for other in lookup.families()
            if assumed and other.slices and len(shape) == other.slices.dims and other.slices.legal(shape)
        ]
        if not others:
            raise
        raise InputError(
            error.given, "", f"{' or '.join(others)}: {found.chip.id} was only assumed"
        ) from error
