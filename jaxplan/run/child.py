"""A run's process: reads one request as JSON, later the run's folder, each a line; tells events as JSON lines.

Started by `jaxplan.run.process` with the environment already set: `python -m jaxplan.run.child PARENT_PID`. Descriptor
1 becomes descriptor 2, so that whatever prints to standard output (a user's program, a C++ library) breaks no line.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import signal
import sys
from typing import Any

from jaxplan.compile.job import die_with_parent
from jaxplan.run.job import Request, execute

FAILED = 1


def finite(value: Any) -> Any:
    """The value with None for floats that JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C is the parent's to handle: it ends us
    faulthandler.enable()
    request = json.loads(sys.stdin.readline())
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    failed = False

    def say(event: dict[str, Any]) -> None:
        nonlocal failed
        failed = failed or event["event"] == "failed"
        events.write(json.dumps({name: finite(value) for name, value in event.items()}) + "\n")
        events.flush()

    execute(Request(**request), say, lambda: json.loads(sys.stdin.readline()))
    sys.stdout.flush()
    sys.stderr.flush()
    if failed:      # leaving in order would wait for peers that may be dead
        os._exit(FAILED)


if __name__ == "__main__":
    main()
