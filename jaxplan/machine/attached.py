"""A calibration of the attached machine: what `jaxplan calibrate` measured, as figures with units. No JAX here.

Every figure holds for a number of devices at work at once: virtual CPU devices share the host's cores and its memory,
so that each is slower the more of them work.

    rates         matmul DTYPE, attention (FLOP/s of one device), memory (bytes/s), launch (s of one program), hidden
                  (of an all-reduce or a matmul, whichever is shorter, the part that the other hides)
    prices        kinds of work of a CPU program (`compile.host_work`), seconds of one unit
    collectives   KIND start (s), KIND byte (s a byte), for groups of some size
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxplan.errors import InputError
from jaxplan.machine import files

SCHEMA = "jaxplan.calibration/1"
FOLDER = "profiling/calibrations"
AGAIN = "`jaxplan calibrate`, which writes calibrations"
UNITS = {"rate": ("FLOP/s", "B/s", "s", "1"), "price": ("s",), "collective": ("s", "s/B")}
NEVER_ZERO = ("FLOP/s", "B/s")

#: Bytes of one operation from which on a price of its own is added: a cache that they no longer fit into (chosen:
#: powers of two from a part of a second-level cache to more than most third-level caches).
FAR_BYTES = (2**18, 2**20, 2**22, 2**24)
FRESH = "bytes taken anew"      # price: of a byte that a program takes from the system at its start


@dataclass(frozen=True)
class Figure:
    """One measured parameter.

    Attributes:
        of: `rate`, `price` or `collective`.
        devices: at work at once while it was measured.
        group: of a collective, the devices of one group; else 1.
    """

    of: str
    name: str
    value: float
    unit: str
    devices: int
    group: int = 1

    def __post_init__(self) -> None:
        if self.of not in UNITS or self.unit not in UNITS[self.of]:
            raise ValueError(f"{self.name}: expected a unit of {UNITS}, got {self.unit!r} of {self.of!r}")
        if not math.isfinite(self.value) or self.value < 0 or (self.unit in NEVER_ZERO and self.value == 0):
            raise ValueError(f"{self.name}: expected a positive value, got {self.value}")
        if self.devices < 1 or not 1 <= self.group <= self.devices:
            raise ValueError(f"{self.name}: expected 1 <= group <= devices, got {self.group} and {self.devices}")


@dataclass(frozen=True)
class Residual:
    """How far timings lie from the fit: median and largest of |predicted / measured - 1|."""

    of: str
    devices: int
    timings: int
    median: float
    worst: float


@dataclass(frozen=True)
class AttachedCalibration:
    """What was measured on one machine on one day.

    Attributes:
        platform, device_kind: as JAX names them (`cpu`, `gpu`, `tpu`; `NVIDIA H100 80GB HBM3`; of a CPU its model).
        date: of the measurement, ISO 8601.
        devices: the most that were at work at once; devices_per_host of them on each host.
        cores, memory_bytes: of the host.
        versions: packages, driver and runtime.
        drift: how much slower than its fastest the reference was in the median round; `noisy` where that is more than
            `NOISY`.
        complete: False where it was interrupted: what is missing then is not in `figures`.
    """

    name: str
    platform: str
    device_kind: str
    date: str
    devices: int
    devices_per_host: int
    cores: int
    memory_bytes: int
    figures: tuple[Figure, ...]
    residuals: tuple[Residual, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    drift: float = 0.0
    seconds: float = 0.0
    complete: bool = True

    def __post_init__(self) -> None:
        if min(self.devices, self.devices_per_host, self.cores, self.memory_bytes) < 1:
            raise ValueError(f"{self.name}: devices, cores and memory must be positive, got {self}")
        if not self.figures:
            raise ValueError(f"{self.name}: expected figures, got none")

    @property
    def noisy(self) -> bool:
        return self.drift > NOISY

    @property
    def said(self) -> str:
        """How a figure that comes from here is labelled."""
        return f"calibrated on {self.device_kind}, {self.date}, {self.name}"

    @cached_property
    def measured_devices(self) -> tuple[int, ...]:
        return tuple(sorted({figure.devices for figure in self.figures}))

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Sizes of groups whose collectives were measured, ascending."""
        return tuple(sorted({figure.group for figure in self.figures if figure.of == "collective"}))

    @cached_property
    def _values(self) -> dict[tuple[str, str], dict[tuple[int, int], float]]:
        found: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
        for figure in self.figures:
            found.setdefault((figure.of, figure.name), {})[figure.devices, figure.group] = figure.value
        return found

    def rate(self, name: str, devices: int) -> float | None:
        """A rate of one device while so many are at work; None where it was not measured."""
        found = self._values.get(("rate", name))
        if found is None:
            return None
        value = between({d: v for (d, _), v in found.items()}, devices)
        shared = {"launch": self._shared(devices), "hidden": 1.0}
        return value * shared.get(name, 1 / self._shared(devices))

    def prices(self, devices: int) -> dict[str, float]:
        """Seconds of one unit of every kind of work while so many devices are at work."""
        of_work = {name: known for (of, name), known in self._values.items() if of == "price"}
        shared = self._shared(devices)
        return {n: shared * between({d: v for (d, _), v in known.items()}, devices) for n, known in of_work.items()}

    def collective(self, name: str, devices: int, group: int) -> float | None:
        """`KIND start` or `KIND byte` of groups of that size while so many devices are at work."""
        found = self._values.get(("collective", name))
        if not found:
            return None
        by_devices = {d: {g: v for (e, g), v in found.items() if e == d} for d, _ in found}
        return self._shared(devices) * between({d: between(known, group) for d, known in by_devices.items()}, devices)

    def _shared(self, devices: int) -> float:
        """How many times slower than at the most measured devices: more virtual CPU devices share the same cores."""
        return max(1.0, devices / self.devices) if self.platform == "cpu" else 1.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AttachedCalibration:
        return cls(**{
            **data,
            "figures": tuple(Figure(**entry) for entry in data["figures"]),
            "residuals": tuple(Residual(**entry) for entry in data["residuals"]),
            "versions": dict(data["versions"]),
        })


NOISY = 0.15        # chosen: beyond what a quiet machine's clocks move


def between(known: Mapping[int, float], count: int) -> float:
    """The value at `count`, straight between its neighbours in log2(count); beyond the last one as at the last."""
    points = sorted(known)
    below = max((n for n in points if n <= count), default=points[0])
    above = min((n for n in points if n >= count), default=points[-1])
    if below == above or not below <= count <= above:
        return known[below if count >= below else points[0]]
    share = math.log2(count / below) / math.log2(above / below)
    return known[below] + share * (known[above] - known[below])


def load(where: str) -> AttachedCalibration:
    """The calibration of that name (in profiling/calibrations here, else where jaxplan is), or of a file.

    Raises:
        InputError: no such file, or none that `written` made.
    """
    path = Path(where)
    if not (path.suffix == ".toml" or path.exists()):
        here = Path(FOLDER) / f"{where}.toml"
        path = here if here.exists() else files.folder(FOLDER) / f"{where}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"calibration {where}: {path}: {reason}", "a name or a file", AGAIN) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}", "a whole calibration", AGAIN) from error
    if data.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema is {data.get('schema')!r}", f"{SCHEMA!r}", AGAIN)
    try:
        body = {key: value for key, value in data.items() if key not in ("schema", "figure", "residual")}
        entries = {"figures": data.get("figure", []), "residuals": data.get("residual", [])}
        return AttachedCalibration.from_json({"versions": {}, **body, **entries})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is no calibration: {error}", f"the keys of {SCHEMA}", AGAIN) from error


ABOUT = """\
# Written by `jaxplan calibrate`. Each value is of one device while `devices` of them work at once. Timings are the
# fastest of several rounds; prices are a non-negative fit to them, and `residual` says how far timings lie from it.
"""


def written(calibration: AttachedCalibration) -> str:
    """The calibration as the text of its file."""
    data = calibration.to_json()
    lines = [ABOUT, f"schema = {_toml(SCHEMA)}"]
    tables = ("figures", "residuals", "versions")
    lines += [f"{key} = {_toml(value)}" for key, value in data.items() if key not in tables]
    lines += ["", "[versions]", *(f"{_toml(key)} = {_toml(value)}" for key, value in calibration.versions.items())]
    for table, entries in (("residual", data["residuals"]), ("figure", data["figures"])):
        for entry in entries:
            lines += ["", f"[[{table}]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    text = "".join(c if c.isprintable() else " " for c in str(value))
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
