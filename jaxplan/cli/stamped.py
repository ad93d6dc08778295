"""A new folder for what one command found, named by the minute, shared with nobody."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from jaxplan.errors import InputError


def stamp(kind: str = "") -> str:
    """`1130-1602`, or `1130-1602-run`."""
    now = time.strftime("%m%d-%H%M")
    return f"{now}-{kind}" if kind else now


OUT = "--out FOLDER"


def new_folder(parent: Path, name: str, flag: str = OUT) -> Path:
    """Makes `parent/name`, or with a number where somebody was faster: two commands of one minute get one each.

    Args:
        flag: that sets another parent.

    Raises:
        InputError: it cannot be made.
    """
    for attempt in itertools.count(1):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError as error:
            if not parent.is_dir():
                raise unwritable(path, error, flag) from error
        except OSError as error:
            raise unwritable(path, error, flag) from error
    raise AssertionError


def unwritable(path: Path, error: OSError, flag: str = OUT) -> InputError:
    """The message of a folder or file that takes nothing."""
    return InputError(f"{path} cannot be written: {error.strerror}", "a folder with room", flag)
