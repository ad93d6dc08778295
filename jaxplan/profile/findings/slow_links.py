"""Collectives along some axes take longer than their bytes should.

Applies where the compiled (else the estimated) seconds of all collectives of a kind along the same axes are exceeded
by half and by what is worth a word, where the plan is for what ran.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, worth
from jaxplan.units import GB, format_bytes, format_seconds, significant

LONGER = 1.5        # chosen: collectives share their links with what runs beside them


def find(compared: Compared) -> Iterator[Finding]:
    if not compared.tier or compared.elsewhere:
        return
    for one in compared.collectives:
        predicted, measured = one.predicted(compared.tier), one.measured
        if predicted is None or measured is None or not predicted.seconds:
            continue
        more = measured.seconds - predicted.seconds
        if measured.seconds > LONGER * predicted.seconds and worth(min(more, measured.exposed_s), compared):
            size = measured.nbytes or predicted.nbytes
            yield Finding(
                f"{one.kind} over {'+'.join(one.axes)} is slow",
                f"{format_bytes(size)} a step take {format_seconds(measured.seconds)} "
                f"({significant(size / measured.seconds / GB)} GB/s), {format_seconds(predicted.seconds)} "
                f"{compared.tier}; waiting for late devices is in it",
                f"`jaxplan calibrate` measures these links; a smaller {one.axes[0]} axis, or another placement of it, "
                "moves less over them",
                min(more, measured.exposed_s),
            )
