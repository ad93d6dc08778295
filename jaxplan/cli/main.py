"""The command line: `python -m jaxplan COMMAND`, the same as the console script `jaxplan`.

Exit codes: 0 good, 1 a verdict against the plan, 2 bad input, 3 something is missing here, 70 a fault of jaxplan's
own (`EX_SOFTWARE` of sysexits.h), 130 interrupted.
"""

from __future__ import annotations

import contextlib
import sys
import traceback

import typer

from jaxplan.cli.calibrate import calibrate
from jaxplan.cli.catalog import catalog
from jaxplan.cli.check import check
from jaxplan.cli.compare import compare
from jaxplan.cli.console import open_missing_streams, unwritable
from jaxplan.cli.doctor import doctor
from jaxplan.cli.explain import explain
from jaxplan.cli.goodput import goodput
from jaxplan.cli.recover import recover
from jaxplan.cli.run import run
from jaxplan.cli.search import INTERRUPTED, search
from jaxplan.cli.validate import validate
from jaxplan.errors import InputError, JaxplanError

INTERNAL = 70

app = typer.Typer(
    name="jaxplan",
    help="Find how to shard a JAX training step over a machine, and have the machine's own compiler prove it.",
    epilog="Every command takes --debug, which shows the traceback of an error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (search, check, explain, run, recover, calibrate, compare, goodput, validate, catalog, doctor):
    app.command()(command)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its code; errors are one message, tracebacks only with `--debug`."""
    open_missing_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"] or ["--help"]
    try:
        code = app(args=arguments, standalone_mode=False)
        code = code if isinstance(code, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = _say(*message(error))
    if code == INTERRUPTED:     # some versions of typer return it, others raise
        _say("interrupted", code)
    sys.exit(code)


def message(error: Exception) -> tuple[str, int]:
    """What is said of an exception, and the exit code that goes with it."""
    if isinstance(error, JaxplanError):
        return f"error: {error}", error.exit_code
    if hasattr(error, "format_message"):
        # a wrong command line, as typer's parser tells it (the class has moved between typer's versions)
        said = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        end = "" if said.endswith("?") else "."
        return f"error: {said}{end} Try `jaxplan --help`, or --help after a command.", InputError.exit_code
    if isinstance(error, OSError) and error.filename is None:
        return f"error: {unwritable(error)}", InputError.exit_code
    said = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"error: jaxplan itself failed: {said}. Try again with --debug, and report what it shows.", INTERNAL


def _say(text: str, code: int) -> int:
    """Writes the last words of a command; nobody may be there to read them."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
    return code
