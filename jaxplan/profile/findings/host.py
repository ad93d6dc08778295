"""Devices wait for the host between steps.

Applies where the time between the last operation of a step and the first of the next is worth a word.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, share, spent, worth
from jaxplan.profile.ledger import HOST
from jaxplan.units import format_seconds


def find(compared: Compared) -> Iterator[Finding]:
    seconds = spent(compared, HOST)
    if worth(seconds, compared):
        yield Finding(
            "the host is late",
            f"devices have nothing to do for {format_seconds(seconds)} before a step's first operation "
            f"({share(seconds, compared)}): no prediction counts that",
            "load batches ahead, and read the loss of an earlier step only, so that the next step is launched while "
            "one runs; in this profile, see what the host's threads do in between",
            seconds,
        )
