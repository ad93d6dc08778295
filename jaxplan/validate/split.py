"""Which runs parameters are fitted to, and which only check them: by whole series and whole sources."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache

from jaxplan.machine import files
from jaxplan.validate.published import BUNDLED, PublishedRun

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def source_of(run: PublishedRun) -> str:
    """The source without its table: a repository, or a paper's authors and year."""
    found = _REPOSITORY.match(run.source)
    return found[0] if found else run.source.split("(")[0].strip(" ,") or "unknown"


def series_of(run: PublishedRun) -> str:
    return run.series or run.id


@dataclass(frozen=True)
class Split:
    """What is for checking, what is fitted to, and beginnings of ids that are never fitted to."""

    sources: frozenset[str]
    series: frozenset[str]
    fitted: frozenset[str]
    not_fitted: tuple[str, ...]


@cache
def split() -> Split:
    data = tomllib.loads((files.folder(BUNDLED) / "split.toml").read_text())
    check = frozenset(data["check_sources"]), frozenset(data["check_series"])
    return Split(*check, frozenset(data["fit_series"]), tuple(data["not_fitted"]))


def part_of(run: PublishedRun) -> str:
    """`fit` or `check`; a run that the split does not know is for checking."""
    known = split()
    if source_of(run) in known.sources or series_of(run) in known.series:
        return "check"
    return "fit" if series_of(run) in known.fitted else "check"


def explains(run: PublishedRun) -> bool:
    """Whether parameters may be fitted to a run at all."""
    return not run.id.startswith(split().not_fitted)
