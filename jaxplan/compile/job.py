"""A worker's process: reads jobs as JSON lines, runs them, writes outcomes as JSON lines.

Started by `jaxplan.compile.worker` with the environment already set: `python -m jaxplan.compile.job
PARENT_PID`. Descriptors 0 and 1 are the lines from and to the parent. They are moved out of the way first, so
that whatever prints to standard output (a user's program, a C++ library) cannot break the protocol.
Descriptor 2 is a file of the parent's.

Request: {"id": n, "function": "package.module:name", "arguments": {...}}.
Reply: {"id": n, "status": "ok" | "failed", "value": ..., "error": "...", "kind": "...", "traceback": "..."}.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

READY = {"id": -1, "status": "ready"}
STDERR_READ_BYTES = 4 * 2**20       # of one job's standard error, at most so much is read: the newest

_stderr_start = 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere the end of input ends it)."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1        # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:      # it died before the call above
        os._exit(1)


def captured_stderr() -> str:
    """What has been written to descriptor 2 since the job began, by anyone, C++ included."""
    sys.stderr.flush()
    size = os.fstat(2).st_size
    start = max(_stderr_start, size - STDERR_READ_BYTES)
    return os.pread(2, size - start, start).decode(errors="replace")


def resolve(function: str) -> Callable[..., Any]:
    """The function that `package.module:name` names."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def perform(request: dict) -> dict:
    """Run one request; its failure is a reply, never an exception."""
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        value = resolve(request["function"])(**request["arguments"])
        json.dumps(value)           # what cannot be sent is the job's failure, too
        return {**reply, "status": "ok", "value": value}
    except (Exception, SystemExit) as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        told = {"kind": kind, "error": str(error), "traceback": traceback.format_exc()}
        return {**reply, "status": "failed", **told}


def forget() -> None:
    """Let go of what JAX keeps of the last job (traces, executables), if this worker has JAX at all."""
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()


def serve(requests, replies) -> None:
    """Answer requests until there are none."""
    global _stderr_start
    for line in requests:
        _stderr_start = os.fstat(2).st_size
        reply = perform(json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        forget()


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C is the parent's to handle: it kills us
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)     # asked for before a hung worker is killed
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    replies.write(json.dumps(READY) + "\n")
    replies.flush()
    serve(requests, replies)


if __name__ == "__main__":
    from jaxplan.compile import job  # the module that jobs import, not this copy of it called __main__

    job.main()
