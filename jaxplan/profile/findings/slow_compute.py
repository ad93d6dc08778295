"""Compute of one kind takes longer than predicted.

Applies to each kind of compute whose measured time exceeds the predicted one by a tenth and by what is worth a word,
where the plan is for what ran.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, worth
from jaxplan.profile.predicted import COMPUTE
from jaxplan.units import TERA, format_seconds, significant

LONGER = 1.1        # chosen: published runs of one configuration differ by 7%


def find(compared: Compared) -> Iterator[Finding]:
    if not compared.tier or compared.elsewhere:
        return
    for row in compared.rows:
        before, after = row.predicted_s(compared.tier) or 0.0, row.measured_s or 0.0
        if row.name in COMPUTE and after > LONGER * before and worth(after - before, compared):
            yield Finding(
                f"{row.name} is slower than {compared.tier}",
                f"{format_seconds(after)} measured, {format_seconds(before)} {compared.tier}{_rate(compared, row.name)}"
                f"; most of it in {_largest(compared, row.name)}",
                "`jaxplan calibrate` measures what this machine reaches, and the next search plans with it; if one "
                "operation stands out, its shape (narrow shards, padding) is the plan's to change",
                after - before,
            )


def _rate(compared: Compared, entry: str) -> str:
    """The rate that operations of a kind reached, where the HLO tells their FLOPs."""
    alike = [one for one in compared.measured.operations if one.entry == entry and one.flops]
    seconds = sum(one.seconds for one in alike)
    if not seconds:
        return ""
    rate = sum(one.flops * one.executions for one in alike) / seconds
    return f" ({significant(rate / TERA)} TFLOP/s reached)"


def _largest(compared: Compared, entry: str) -> str:
    one = next(one for one in compared.measured.operations if one.entry == entry)
    return f"{one.name}{f' ({one.source})' if one.source else ''}"
