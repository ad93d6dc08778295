"""Reading catalogue files: TOML with a source beside every number. The border: bad files become `InputError`.
No JAX here.

The catalogue lies in `jaxplan/catalogue` where jaxplan was installed from a wheel, and beside the package in
a checkout.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from jaxplan.errors import InputError
from jaxplan.units import GB, GIB, TERA

UNITS = {
    "": 1.0,
    "B": 1.0,
    "GB": GB,
    "GiB": GIB,
    "GB/s": GB,
    "TFLOP/s": TERA,
    "GHz": 1e9,
    "us": 1e-6,
    "FLOP": 1.0,
    "W": 1.0,
}

_PACKAGE = Path(__file__).resolve().parent.parent
F = TypeVar("F", bound=pydantic.BaseModel)


class Record(pydantic.BaseModel):
    """Base of every catalogue record: unknown keys are errors, nothing is converted silently."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Figure(Record):
    """One number with its unit, its source and the date on which the source was read."""

    value: float
    unit: str
    source: str
    date: str

    @pydantic.field_validator("unit")
    @classmethod
    def _known_unit(cls, unit: str) -> str:
        if unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(repr(u) for u in UNITS)}, got {unit!r}")
        return unit

    @pydantic.field_validator("source")
    @classmethod
    def _has_source(cls, source: str) -> str:
        if not source.strip():
            raise ValueError("source must not be empty")
        return source

    @property
    def si(self) -> float:
        """The value in bytes, seconds, FLOP or their quotients."""
        return self.value * UNITS[self.unit]

    @property
    def citation(self) -> str:
        return f"{self.source} [{self.date}]"


def folder(kind: str) -> Path:
    """The folder of one kind of catalogue file: `meshes/chips`, `meshes/machines`, `models`."""
    for root in (_PACKAGE / "catalogue", _PACKAGE.parent):
        if (root / kind).is_dir():
            return root / kind
    raise InputError(
        f"the catalogue folder {kind} is missing", f"it in {_PACKAGE / 'catalogue'} or {_PACKAGE.parent}"
    )


def names(kind: str) -> tuple[str, ...]:
    """Names (without `.toml`) of all catalogue files of one kind, sorted."""
    return tuple(sorted(path.stem for path in folder(kind).glob("*.toml")))


def looks_like_path(text: str) -> bool:
    return text.endswith((".toml", ".json")) or "/" in text


def read(path: Path, record: type[F]) -> F:
    """One TOML file as a checked record.

    Raises:
        InputError: no such file, no TOML, or a key that is missing, unknown or of the wrong type.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", "a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not valid TOML: {error}", "TOML such as the files of the catalogue"
        ) from error
    try:
        # by way of JSON, where an array may become a tuple although `true` may not become 1
        return record.model_validate_json(json.dumps(data, default=str))
    except pydantic.ValidationError as error:
        raise InputError(*explain(path, error)) from error


def explain(path: object, error: pydantic.ValidationError) -> tuple[str, str]:
    """The first fault of a record as (given, expected): file, key, what was there, what should be."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in fault["loc"]) or "the file as a whole"
    if fault["type"] == "missing":
        return f"{path}: key {key} is missing", f"a value for {key}"
    if fault["type"] == "extra_forbidden":
        return f"{path}: key {key} is not known", "only the keys that the catalogue's own files use"
    shown = repr(fault["input"])
    expected = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{path}: key {key} is {shown if len(shown) < 80 else shown[:77] + '...'}", expected
