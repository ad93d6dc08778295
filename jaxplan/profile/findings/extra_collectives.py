"""Collectives that no tier foresaw, or that move far more than foreseen: XLA reshards what the plan meant to stay.

Applies where the program moves more bytes along some axes than the better prediction says, by half, and their exposed
time is worth a word.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, worth
from jaxplan.units import format_bytes, format_seconds

MORE = 1.5      # chosen: forms of one exchange differ by less


def find(compared: Compared) -> Iterator[Finding]:
    if not compared.tier:
        return
    axes = dict.fromkeys(one.axes for one in compared.collectives if one.axes)
    for along in axes:
        members = [one for one in compared.collectives if one.axes == along]
        foreseen = [one.predicted(compared.tier) for one in members]
        before = sum(one.nbytes for one in foreseen if one is not None)
        own = [one.measured for one in members if one.measured is not None]
        moved, exposed = sum(one.nbytes for one in own), sum(one.exposed_s for one in own)
        if moved > MORE * before and worth(exposed, compared):
            kinds = ", ".join(dict.fromkeys(one.kind for one in own))
            yield Finding(
                f"more moves over {'+'.join(along)} than {compared.tier}",
                f"{format_bytes(moved)} a step ({kinds}), {format_bytes(before)} {compared.tier}; "
                f"{format_seconds(exposed)} of it exposed",
                "`jaxplan check` shows what the partitioner does; a sharding constraint in the program where the plan "
                "and the program part keeps it from resharding",
                exposed,
            )
