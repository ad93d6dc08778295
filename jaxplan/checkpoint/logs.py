"""What orbax and its storage say again of a failure that `Checkpointer` raises itself is dropped: ten screens of it.

No JAX here.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

REPEATED = ("_SignalingThread.run() raised", "Handler Commit operations or the Commit")
# said by every read that was on its way when the first one failed, each with a page of its storage's settings
BESIDE = ("Event loop is closed", "Encountered error while reading array")


class _Repeated(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in REPEATED)


@functools.cache
def quieten() -> None:
    """Drops the repeated records of orbax's logger, and the tracebacks of reads that failed beside the first."""
    logging.getLogger("absl").addFilter(_Repeated())
    sys.unraisablehook = functools.partial(_hook, sys.unraisablehook)


def _hook(before: Callable[[Any], Any], unraisable: Any) -> None:
    if not any(text in str(unraisable.exc_value) for text in BESIDE):
        before(unraisable)
