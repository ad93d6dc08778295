"""Files that a compile leaves beside its evidence: one step as it passes, the program for a memory viewer. No JAX.

They lie in the cache, in a folder named like the evidence's file. They are extras: where they cannot be written, or the
cache is off, evidence is all there is.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from jaxplan.compile.events import Node, document
from jaxplan.compile.reading import largest_dump
from jaxplan.compile.xspace import HOST, xspace
from jaxplan.plan.files import write_whole

TIMELINE = "timeline.json"
PROFILE = f"{HOST}.xplane.pb"
MOST_BYTES = 2**27      # of a program: a viewer in a browser shows no larger one


def keep_timeline(folder: Path, step: Node) -> None:
    """One compiled step, schema `jaxplan.timeline/1`."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TIMELINE, json.dumps(document(step, "compiled")))


def keep_program(folder: Path, dump: Path) -> None:
    """The program in `dump`, a folder that XLA dumped to, as a profile without events."""
    found = largest_dump(dump)
    if found is None or found.stat().st_size > MOST_BYTES:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / PROFILE, xspace([found.read_bytes()]))


def copy_to(run: Path, folder: Path | None, number: int) -> None:
    """Puts what is there of plan `number` (from 1) into a run's folder, where TensorBoard looks for it.

    Raises:
        OSError: the run's folder cannot be written.
    """
    if folder is None:
        return
    suffix = f"-{number}" if number > 1 else ""
    session = run / "plugins" / "profile" / f"compiled-plan{suffix}"
    for source, target in (
        (folder / TIMELINE, run / f"timeline{suffix}.json"),
        (folder / PROFILE, session / PROFILE),
    ):
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
