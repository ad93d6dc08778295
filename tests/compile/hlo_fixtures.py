"""The fixtures in data/, and HLO text written by hand."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from hlo_programs import Model

from jaxplan.compile.hlo import Module, parse

DATA = Path(__file__).parent / "data"
STEPS = sorted(
    path.name.removesuffix(".hlo.gz")
    for path in DATA.glob("*.hlo.gz")
    if "_mixed" in path.name or "_fsdp" in path.name
)
DEVICES = 8


@cache
def text(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.hlo.gz").read_bytes()).decode()


@cache
def module(name: str) -> Module:
    return parse(text(name))


def proto(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.pb.gz").read_bytes())


def record(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text())


def axes(name: str) -> dict[str, int]:
    return {"data": 1, "fsdp": 1, "tensor": 1, **record(name)["axes"]}


def model(name: str) -> Model:
    return Model(**record(name)["model"])


def program(entry: str, others: str = "", header: str = "is_scheduled=true, num_partitions=8") -> Module:
    """A module of one entry computation with these lines, after other computations."""
    lines = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    return parse(
        f"HloModule by_hand, {header}\n\n{others}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{lines}\n}}\n"
    )
