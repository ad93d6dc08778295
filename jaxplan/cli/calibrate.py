"""`jaxplan calibrate`: measure the attached machine in minutes and write what was found as a calibration."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from jaxplan.cli.console import console, print_json
from jaxplan.compile.environment import MAX_HOST_DEVICES
from jaxplan.errors import InputError
from jaxplan.machine.attached import FOLDER, AttachedCalibration, written
from jaxplan.plan.files import save
from jaxplan.profile.calibrate.session import Session
from jaxplan.report.calibrate_text import calibration_json, calibration_lines

INTERRUPTED = 130


def calibrate(
    name: Annotated[str, typer.Option(help="what the calibration is called")] = "attached",
    out: Annotated[Path, typer.Option(help="folder that NAME.toml is written to")] = Path(FOLDER),
    devices: Annotated[
        int | None, typer.Option(help="up to so many virtual CPU devices, instead of what JAX finds attached")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a fourth of the pieces, in seconds: rough")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON on standard output")] = False,
) -> int:
    """Measure this machine: matmuls, memory, loops, collectives; write what predictions then use."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"--name {name!r}", "letters, digits, dots, dashes: it becomes a file's name")
    if devices is not None and not 1 <= devices <= MAX_HOST_DEVICES:
        raise InputError(f"--devices {devices}", f"1 to {MAX_HOST_DEVICES}")
    path, stderr = out / f"{name}.toml", console(sys.stderr)
    _check_writable(out)
    kept: list[AttachedCalibration] = []

    def keep(found: AttachedCalibration) -> None:
        kept.append(found)
        save(path, written(found))

    def say(words: str) -> None:
        stderr.print(words, markup=False)

    try:
        found = Session(name, devices, quick, say, keep).run()
    except KeyboardInterrupt:
        say(f"What was measured is in {path}" if kept else "interrupted before anything was measured")
        return INTERRUPTED
    if as_json:
        print_json(calibration_json(found, str(path)))
    else:
        stdout = console(sys.stdout)
        for line in calibration_lines(found, str(path)):
            stdout.print(line, markup=False)
    return 0


def _check_writable(folder: Path) -> None:
    """Refuses a folder that takes no files before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror or error}", "a folder that can be written") from error
