"""The command line: `python -m jaxplan COMMAND`, the same as the console script `jaxplan`.

Exit codes: 0 good, 1 a verdict against the plan, 2 bad input, 3 something is missing here, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback

import typer

from jaxplan.cli.catalog import catalog
from jaxplan.cli.check import check
from jaxplan.cli.doctor import doctor
from jaxplan.cli.search import search
from jaxplan.errors import InputError, JaxplanError

INTERRUPTED = 130       # 128 + SIGINT, as shells report it

app = typer.Typer(
    name="jaxplan",
    help="Find how to shard a JAX training step over a machine, and have the machine's own compiler prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (search, check, catalog, doctor):
    app.command()(command)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its code; errors are one message, tracebacks only with `--debug`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        code = app(args=[a for a in arguments if a != "--debug"], standalone_mode=False)
    except JaxplanError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except typer.Abort:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        code = 0
    except Exception as error:
        if debug or not hasattr(error, "format_message"):
            raise
        # a wrong command line, as typer's parser tells it (the class has moved between typer's versions)
        print(f"error: {error.format_message()}", file=sys.stderr)  # type: ignore[attr-defined]
        code = InputError.exit_code
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
