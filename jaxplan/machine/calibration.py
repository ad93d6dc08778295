"""The calibration: parameters with priors, their sources, and the values that they were fitted to."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from jaxplan.errors import InputError
from jaxplan.machine import files

FOLDER = "profiling/calibrations"
FILE = "published.toml"


@dataclass(frozen=True)
class Parameter:
    """One physical figure.

    Attributes:
        prior: what is known of it without any run; `source` says from where.
        width: how far off the prior may be, as a standard deviation of its logarithm; 0: it is not fitted.
        most: a physical limit (a share is at most 1).
        value: calibrated.
    """

    name: str
    unit: str
    prior: float
    width: float
    value: float
    source: str
    most: float = math.inf

    def __post_init__(self) -> None:
        if not (self.prior > 0 and self.value > 0 and self.width >= 0 and self.most >= self.prior):
            raise ValueError(f"{self.name}: expected 0 < prior <= most, value > 0 and width >= 0, got {self}")

    @property
    def fitted(self) -> bool:
        return self.width > 0

    def at(self, deviation: float) -> float:
        """The value that many widths away from the prior."""
        return min(self.prior * math.exp(deviation * self.width), self.most)


@dataclass(frozen=True)
class Calibration:
    """All parameters.

    Attributes:
        below, above: factors around a prediction within which 98 in 100 runs of the fitting set lay when they were
            predicted without their own half of it.
    """

    parameters: tuple[Parameter, ...]
    below: float
    above: float

    @cached_property
    def values(self) -> Mapping[str, float]:
        """By name."""
        return {parameter.name: parameter.value for parameter in self.parameters}

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        changed = (replace(p, value=values.get(p.name, p.value)) for p in self.parameters)
        return replace(self, parameters=tuple(changed))


def path() -> Path:
    return files.folder(FOLDER) / FILE


@cache
def load(where: Path | None = None) -> Calibration:
    """The calibration that comes with jaxplan, or of a file of the same form.

    Raises:
        InputError: no such file, or a parameter that is none.
    """
    source = where or path()
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
        parameters = tuple(Parameter(**entry) for entry in data["parameter"])
        return Calibration(parameters, data["interval"]["below"], data["interval"]["above"])
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}", "a calibration") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        expected = "the form of profiling/calibrations/published.toml"
        raise InputError(f"{source} is no calibration: {error}", expected) from error


ABOUT = """\
# Parameters of the predictions of published runs. Priors and their widths come from the sources beside them; values
# were fitted to the fitting set of profiling/published/split.toml by `python -m jaxplan validate --fit`. Read for this
# file were stas00/ml-engineering (through meshes/), AI-Hypercomputer/tpu-recipes (through meshes/) and
# MooreThreads/SimuMax; the other sources are named from what is known of them and were not read again.
"""


def written(calibration: Calibration) -> str:
    """The calibration as the text of its file."""
    lines = [ABOUT, "[interval]"]
    lines += [f"below = {calibration.below:.3f}", f"above = {calibration.above:.3f}"]
    for p in calibration.parameters:
        lines += ["", "[[parameter]]", f'name = "{p.name}"', f'unit = "{p.unit}"', f"prior = {p.prior:.6g}"]
        lines += [f"width = {p.width:.6g}", f"value = {p.value:.4g}"]
        lines += [f"most = {p.most:.6g}"] if math.isfinite(p.most) else []
        lines += [f'source = "{p.source}"']
    return "\n".join(lines) + "\n"
