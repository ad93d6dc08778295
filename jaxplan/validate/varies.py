"""What a series of published runs varies: decisions of the plan, the machine's size, the workload... No JAX here."""

from __future__ import annotations

from functools import cache

from jaxplan.machine import files

PLAN = "plan"
CLASSES = (PLAN, "machine size", "workload", "precision", "software")
UNCLASSIFIED = "not classified"


class VariesFile(files.Record):
    """`profiling/published/varies.toml`: the text of a run's `varies` -> its class."""

    varies: dict[str, str]


@cache
def classes() -> dict[str, str]:
    """The class of each known text.

    Raises:
        InputError: the file is missing or names a class that is none.
    """
    path = files.folder("profiling/published") / "varies.toml"
    found = files.read(path, VariesFile).varies
    unknown = {name for name in found.values() if name not in CLASSES}
    if unknown:
        raise files.InputError(f"{path}: class {min(unknown)!r} is not known", f"one of {', '.join(CLASSES)}")
    return found


def class_of(varies: str | None) -> str:
    """The class of a run's `varies`; a text that the file does not have is not classified."""
    return classes().get(varies or "", UNCLASSIFIED)
