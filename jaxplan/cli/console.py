"""Where commands write: consoles that outlive their reader, JSON documents, and what a lost output means."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from rich.console import Console

from jaxplan.errors import InputError

PIPE_COLUMNS = 140  # nothing is folded or cut where another program reads


class StreamConsole(Console):
    """A console on one of the standard streams. Where its reader is gone (`| head`) it is silent from then on.

    The command goes on: what it finds is in its folder, and its exit code is its own.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


def console(stream: TextIO, pipe_columns: int = PIPE_COLUMNS) -> Console:
    """A console as wide as the terminal, or, where the stream is a pipe or a file, wide enough to cut nothing."""
    width = None if stream.isatty() else pipe_columns
    return StreamConsole(file=stream, highlight=False, soft_wrap=True, width=width)


def print_json(document: Any) -> None:
    """The one document of `--json` on standard output.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        print(json.dumps(document, indent=1), flush=True)
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> InputError:
    """The message of an output that takes nothing more."""
    silence(sys.stdout)
    return InputError(f"standard output cannot be written: {error.strerror or error}", "a place with room")


def silence(stream: Any) -> None:
    """Send what is still written to a stream nowhere, so that the interpreter's last flush does not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_missing_streams() -> None:
    """A process that was started with a closed standard output or error gets one that leads nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  lives as long as the process
