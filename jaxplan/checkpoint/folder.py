"""The folder of a run's checkpoints: which steps are whole, what is moved away, how much room there is. No JAX.

Step 200 is the folder `200`, as orbax's manager names it. Damaged steps go to `quarantine/200`, `quarantine/200.1`, the
reason beside them in `200.txt`; nothing is deleted there. A step that retention removes is renamed first, so that a
crash in between leaves no half step behind. Paths are orbax's (`epath`); it was tried on local file systems only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass

from etils import epath

from jaxplan.errors import InputError

QUARANTINE = "quarantine"
REMOVED = ".removed"
UNFINISHED = ".orbax-checkpoint-tmp"        # orbax's name for a save that has not been committed
COMMITTED = "_CHECKPOINT_METADATA"          # orbax writes it in every step


@dataclass(frozen=True)
class Folder:
    """One run's checkpoints."""

    path: epath.Path

    @classmethod
    def of(cls, path: str | os.PathLike[str], create: bool = True) -> Folder:
        """The folder of that path, made if need be.

        Raises:
            InputError: it cannot be made, it is a file, or nothing can be written in it.
        """
        found = epath.Path(os.path.abspath(path) if "://" not in os.fspath(path) else path)
        if create:
            _make_writable(found)
        elif not found.is_dir():
            raise InputError(f"there is no folder {found}", "a folder with checkpoints")
        return cls(found)

    def step(self, step: int) -> epath.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """Every folder that is named like a step, whole or not, ascending."""
        try:
            return sorted(int(p.name) for p in self.path.iterdir() if p.name.isdecimal() and str(int(p.name)) == p.name)
        except FileNotFoundError:
            return []

    def clean(self) -> list[str]:
        """Deletes what a crash left of saves that were never committed, and of removals; names what is gone."""
        left = [p for p in self.path.iterdir() if UNFINISHED in p.name or p.name.endswith(REMOVED)]
        for path in left:
            path.rmtree(missing_ok=True)
        return sorted(path.name for path in left)

    def remove(self, step: int) -> None:
        """Deletes a step; a crash on the way leaves nothing that looks like one."""
        gone = self.path / f"{step}{REMOVED}"
        with contextlib.suppress(FileNotFoundError):        # another process of this run was faster
            gone.rmtree(missing_ok=True)
            self.step(step).rename(gone)
            gone.rmtree(missing_ok=True)

    def quarantine(self, step: int, why: str) -> epath.Path | None:
        """Moves a step away with the reason beside it, so that it can be saved again; None if it is gone already."""
        place = self.path / QUARANTINE
        place.mkdir(parents=True, exist_ok=True)
        taken = {path.name for path in place.iterdir()}
        name = next(n for n in (str(step), *(f"{step}.{i}" for i in range(1, len(taken) + 2))) if n not in taken)
        try:
            self.step(step).rename(place / name)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):      # a full disk: the step is away, its reason was said
            (place / f"{name}.txt").write_text(f"{why}\n")
        return place / name

    def room(self) -> int | None:
        """Bytes that can still be written there; None where nobody can say (an object store)."""
        try:
            return shutil.disk_usage(self.path).free
        except OSError:
            return None


def _make_writable(path: epath.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"checkpoints cannot be written in {path}: {reason}", "a folder with room") from error
