"""All faults, one after another, each told as soon as it is judged. No JAX."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from types import ModuleType

from jaxplan.errors import InputError
from jaxplan.run.drill import faults
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import Stage
from jaxplan.run.drill.worker import SilentError

#: The order in which people read them; what is not named comes last.
ORDER = (
    "kill-step", "kill-save", "kill-peer", "sigterm", "hang", "corrupted", "truncated", "missing", "empty-step",
    "disk-full", "not-finite", "rollback", "changed-dtype", "changed-optimizer", "changed-shards", "other-mesh",
    "other-jax",
)  # fmt: skip


def known() -> dict[str, ModuleType]:
    """Every fault by its name."""
    found = [importlib.import_module(f"{faults.__name__}.{m.name}") for m in pkgutil.iter_modules(faults.__path__)]
    rank = {name: i for i, name in enumerate(ORDER)}
    return {m.NAME: m for m in sorted(found, key=lambda m: (rank.get(m.NAME, len(rank)), m.NAME))}


def chosen(text: str) -> list[ModuleType]:
    """The faults of `all`, or of names with commas between.

    Raises:
        InputError: no such fault.
    """
    every = known()
    names = list(every) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in every]
    if wrong or not names:
        raise InputError(f"--faults {text!r}", f"all, or some of {', '.join(every)}")
    return [every[name] for name in names]


def play(stage: Stage, which: Sequence[ModuleType]) -> Iterator[Outcome]:
    """Every fault's outcome on a prepared stage; where a process says nothing it has failed, and the next is played."""
    for fault in which:
        try:
            yield fault.run(stage)
        except SilentError as error:
            stage.renew()
            yield Outcome(fault.NAME, fault.WHAT, fault.SAFE, str(error), False)
