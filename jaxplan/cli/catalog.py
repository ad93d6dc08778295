"""`jaxplan catalog [chips|machines|models] [NAME]`: what is known, every figure with its source."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from jaxplan.cli.console import console, print_json
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.machine.chip import Chip
from jaxplan.machine.family import Family, text
from jaxplan.machine.models import records
from jaxplan.machine.slices import SliceRule
from jaxplan.units import GB, TERA, format_bytes, format_count, significant
from jaxplan.workload.parameters import active_parameter_count, parameter_count

KINDS = ("chips", "machines", "models")
LISTED_CHIPS = 1024  # larger slices are summed up in one line: there are thousands of legal boxes
FIGURE_DIGITS = 4
PIPE_COLUMNS = 400  # nothing is folded or cut where another program reads

# what a list shows of its rows, under which heading; the rest is in --json and in the entry itself
FOLDED = ("name", "compiler", "size", "source", "bandwidth")
HEADINGS = {
    "id": "name",
    "name": "",
    "bfloat16_flops_per_s": "bf16 peak",
    "hbm_usable_bytes": "memory",
    "hbm_bytes_per_s": "bandwidth",
    "link_bytes_per_s": "link",
    "compiler": "compiler",
    "chip": "chip",
    "chips_per_host": "chips/host",
    "size": "size",
    "dcn_bytes_per_s_per_host": "network/host",
    "parameters": "parameters",
    "active_parameters": "active",
    "layers": "layers",
    "embed": "embed",
    "heads": "heads",
    "kv_heads": "kv",
    "vocab": "vocab",
    "figure": "figure",
    "value": "value",
    "source": "source",
}

Rows = list[dict[str, Any]]


def catalog(
    kind: Annotated[
        str | None, typer.Argument(help="chips, machines or models; all of them when left out")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="one of them, or a TOML file of yours")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """What is known: chips, machines and models, every figure with its source."""
    kinds = KINDS if kind is None else (_kind(kind),)
    found = {each: rows(each, name) for each in kinds}
    if as_json:
        print_json({"schema": "jaxplan.catalog/1", **found})
        return 0
    stdout = console(sys.stdout, PIPE_COLUMNS)
    for each, listed in found.items():
        stdout.print(_grid(each if name is None else f"{each} {name}", listed, stdout.is_terminal), soft_wrap=False)
    return 0


def rows(kind: str, name: str | None = None) -> Rows:
    """The catalogue as plain rows, SI units, one dict a row.

    Args:
        kind: `chips`, `machines` or `models`.
        name: every figure of that one, with its source; for a machine of TPU slices, its legal slices.

    Raises:
        InputError: unknown kind or name.
    """
    kind = _kind(kind)
    if kind == "chips":
        return (
            [_chip_row(c) for c in catalogue.chips()] if name is None else _chip_figures(catalogue.chip(name))
        )
    if kind == "machines":
        if name is None:
            return [_family_row(f) for f in catalogue.families()]
        return _family_figures(catalogue.family(name))
    return _models() if name is None else _model_figures(name)


def _kind(kind: str) -> str:
    plural = kind.lower() if kind.lower().endswith("s") else f"{kind.lower()}s"
    if plural not in KINDS:
        raise InputError(f"unknown catalogue {kind!r}", f"one of {', '.join(KINDS)}", "`jaxplan catalog`")
    return plural


def _chip_row(chip: Chip) -> dict[str, Any]:
    return {
        "id": chip.id,
        "name": chip.name,
        "bfloat16_flops_per_s": chip.flops_per_s("bfloat16"),
        "hbm_usable_bytes": chip.hbm_usable_bytes,
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "link_bytes_per_s": chip.link_bytes_per_s,
        "fabric": chip.fabric,
        "devices_per_chip": chip.devices_per_chip,
        "compiler": "libtpu"
        if chip.kind == "tpu"
        else "CUDA plugin"
        if chip.target
        else "none: estimate only",
        "aliases": ", ".join(chip.aliases),
    }


def _chip_figures(chip: Chip) -> Rows:
    """One row a figure; a figure that the file does not give (a default) is left out."""
    out = []
    for key, source in chip.sources.items():
        if key == "target":
            out += [{"figure": f"target.{k}", "value": v, "source": source} for k, v in _target(chip).items()]
            continue
        table, _, entry = key.partition(".")
        value = getattr(chip, table)
        out.append({"figure": key, "value": value[entry] if entry else value, "source": source})
    return out


def _target(chip: Chip) -> dict[str, Any]:
    return dataclasses.asdict(chip.target) if chip.target else {}


def _family_row(family: Family) -> dict[str, Any]:
    rule = family.slices
    size = (
        f"up to {rule.max_chips} chips" if rule else f"any number of hosts, domains of {family.domain_chips}"
    )
    return {
        "id": family.id,
        "name": family.name,
        "chip": family.chip.id,
        "chips_per_host": family.chips_per_host,
        "size": size,
        "dcn_bytes_per_s_per_host": family.fixed["dcn_bytes_per_s_per_host"],
        "compiler_flags": dict(family.fixed["compiler_flags"]),
    }


def _family_figures(family: Family) -> Rows:
    out: Rows = _slices(family, family.slices) if family.slices else []
    for key, source in family.sources.items():
        table, _, entry = key.partition(".")
        value = family.fixed[table]
        out.append({"figure": key, "value": value[entry] if entry else value, "source": source})
    return out


def _slices(family: Family, rule: SliceRule) -> Rows:
    shapes = rule.shapes()
    listed = [shape for shape in shapes if math.prod(shape) <= LISTED_CHIPS]
    out: Rows = []
    for shape in listed:
        made = family.machine(shape)
        rings = ", ".join(str(n) for n, wraps in zip(made.shape, made.wraps, strict=True) if wraps)
        words = (
            f"{made.chips} chips, {made.devices} devices, {made.hosts} host{'s' if made.hosts > 1 else ''}"
        )
        out.append({"figure": f"slice {text(shape)}", "value": words, "source": f"rings: {rings or 'none'}"})
    if len(listed) < len(shapes):
        rest = f"{len(shapes) - len(listed)} larger boxes of whole {text((rule.cube,) * rule.dims)} cubes"
        out.append({"figure": "larger slices", "value": rest, "source": f"up to {rule.max_chips} chips"})
    return out


def _models() -> Rows:
    return [
        {
            "name": shape.name,
            "parameters": parameter_count(shape),
            "active_parameters": active_parameter_count(shape),
            "layers": shape.layers,
            "embed": shape.embed,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "vocab": shape.vocab,
            "seq": shape.default_seq,
        }
        for shape in catalogue.models()
    ]


def _model_figures(name: str) -> Rows:
    shape = catalogue.model(name)
    skip = ("name", "source", "experts", "latent_attention", "published_parameters")
    values = {k: v for k, v in dataclasses.asdict(shape).items() if k not in skip}
    for part in ("experts", "latent_attention"):
        nested = getattr(shape, part)
        values |= {f"{part}.{k}": v for k, v in dataclasses.asdict(nested).items()} if nested else {}
    out: Rows = [{"figure": k, "value": v, "source": shape.source} for k, v in values.items()]
    out.append({"figure": "parameters", "value": parameter_count(shape), "source": "counted from the shape"})
    record = records().get(shape.name)
    if record is not None and record.published_parameters is not None:
        known = record.published_parameters
        out.append({"figure": "published_parameters", "value": known.value, "source": known.source})
    return out


def _grid(title: str, listed: Rows, terminal: bool) -> Grid:
    grid = Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    shown = [key for key in listed[0] if key in HEADINGS] if listed else []
    for key in shown:
        heading = "model" if key == "name" and "id" not in shown else HEADINGS[key]
        grid.add_column(heading, no_wrap=key not in FOLDED, overflow="fold")
    for row in listed:
        grid.add_row(*(_words(row.get("figure", key) if key == "value" else key, row[key]) for key in shown))
    return grid


def _words(key: str, value: Any) -> str:
    """A value with the unit that its name says."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key.startswith("target."):
        return str(value)
    if "flops_per_s" in key:
        return f"{significant(value / TERA, FIGURE_DIGITS)} TFLOP/s"
    if "bytes_per_s" in key:
        return f"{significant(value / GB, FIGURE_DIGITS)} GB/s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_hz"):
        return f"{significant(value / 1e9)} GHz"
    if key.endswith("_s"):
        return f"{significant(value * 1e6)} µs"
    if key.endswith("parameters"):
        return format_count(value) if key != "published_parameters" else f"{value:,}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
