"""What was published about failing machines: rates, what to assume, useful time of real runs. No JAX here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import pydantic

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.machine.files import Record

FOLDER = "profiling/failures"
Read = Literal["source", "second-hand", "recalled", "derived", "chosen"]
Range = tuple[float, float]


class Rate(Record):
    """One fleet's failures; either its rate or what was counted."""

    id: str
    what: str
    chips: tuple[str, ...] = ()
    per_1000_node_days: float | None = pydantic.Field(None, gt=0)
    failures: float | None = pydantic.Field(None, gt=0)
    days: float | None = pydantic.Field(None, gt=0)
    nodes: int | None = pydantic.Field(None, gt=0)
    default: bool = False
    source: str
    date: str
    read: Read
    notes: str = ""

    @property
    def value(self) -> float:
        """Failures per 1,000 node-days."""
        if self.per_1000_node_days is not None:
            return self.per_1000_node_days
        if self.failures is None or self.days is None or self.nodes is None:
            raise InputError(f"rate {self.id}", "per_1000_node_days, or failures, days and nodes")
        return 1000 * self.failures / (self.days * self.nodes)

    @property
    def citation(self) -> str:
        return cited(self.source, self.read)


class RateFile(Record):
    """`rates.toml`."""

    rate: tuple[Rate, ...]


class Default(Record):
    """One figure that is assumed where nobody gives one, in SI units."""

    value: float
    source: str
    date: str
    read: Read

    @property
    def citation(self) -> str:
        return cited(self.source, self.read)


class Defaults(Record):
    """`defaults.toml`."""

    initialization_s: Default
    storage_bytes_per_s_per_host: Default
    block_s: Default
    write_s: Default
    restore_s: Default
    repair_s: Default
    spares_probability: Default
    weibull_shape: Default


class PublishedRun(Record):
    """One run's useful share of time with the inputs that are known; a pair is a range."""

    id: str
    name: str
    gpus: int | None = None
    nodes: int | None = None
    per_1000_node_days: Range | None = None
    failures: Range | None = None
    days: Range | None = None
    mtbf_s: Range | None = None
    interval_s: Range | None = None
    block_s: Range | None = None
    write_s: Range | None = None
    restart_s: Range | None = None
    assumed: tuple[str, ...] = ()
    because: str = ""
    value: float | None = None
    at_least: float | None = None
    said: str = ""
    explained: str = ""
    source: str
    read: Read


class PublishedFile(Record):
    """`published_goodput.toml`."""

    run: tuple[PublishedRun, ...]


def cited(source: str, read: str) -> str:
    """A source with how it was read, where that is not plain."""
    return source if read in ("source", "derived", "chosen") else f"{source} ({read})"


@cache
def rates() -> tuple[Rate, ...]:
    """Every published rate."""
    return files.read(_path("rates"), RateFile).rate


@cache
def defaults() -> Defaults:
    """What is assumed."""
    return files.read(_path("defaults"), Defaults)


@cache
def published() -> tuple[PublishedRun, ...]:
    """Every run that published its useful share of time."""
    return files.read(_path("published_goodput"), PublishedFile).run


def rate(id: str) -> Rate:
    """The rate of that name.

    Raises:
        InputError: unknown; names what there is.
    """
    for known in rates():
        if known.id == id.strip().lower():
            return known
    raise InputError(f"unknown failure rate {id!r}", f"one of {', '.join(known.id for known in rates())}")


def rate_of_chip(chip: str | None) -> tuple[Rate, bool]:
    """(the rate of a fleet of that chip, whether it is one): else the default fleet's."""
    for known in rates():
        if chip is not None and chip in known.chips:
            return known, True
    return next(known for known in rates() if known.default), False


def _path(name: str) -> Path:
    return files.folder(FOLDER) / f"{name}.toml"
