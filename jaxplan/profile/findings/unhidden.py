"""Collectives that no compute hides.

Applies where more of the collectives along some axes is exposed than was predicted (without a plan: more than half of
their time), by what is worth a word. On the host platform nothing is ever hidden: one sentence says so for all.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, share, worth
from jaxplan.units import format_seconds

HOW = {
    "gpu": "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true lets XLA run them beside compute; more "
    "microbatches or a smaller axis leave less to hide",
    "tpu": "the chip's recipe of flags (`jaxplan catalog`) lets XLA run them beside compute; memory that is nearly "
    "full keeps the scheduler from it",
}


def find(compared: Compared) -> Iterator[Finding]:
    if compared.measured.platform == "cpu":
        yield from _on_the_host(compared)
        return
    predicted = {row.name: row.predicted_s(compared.tier) or 0.0 for row in compared.rows} if compared.tier else {}
    sums: dict[str, list[float]] = {}
    for one in compared.measured.collectives:
        total = sums.setdefault("+".join(one.axes) or one.kind, [0.0, 0.0])
        total[0] += one.seconds
        total[1] += one.exposed_s
    for name, (seconds, exposed) in sums.items():
        before = predicted.get(f"exposed {name}", 0.0)
        more = exposed - before
        if exposed > seconds / 2 and worth(more, compared):
            said = f", {format_seconds(before)} {compared.tier}" if compared.tier and not compared.elsewhere else ""
            yield Finding(
                f"collectives over {name} are not hidden" if name in _axes(compared) else f"{name} is not hidden",
                f"devices wait for {format_seconds(exposed)} of their {format_seconds(seconds)} "
                f"({share(exposed, compared)}){said}",
                HOW[compared.measured.platform],
                more,
            )


def _on_the_host(compared: Compared) -> Iterator[Finding]:
    exposed = sum(one.exposed_s for one in compared.measured.collectives)
    if worth(exposed, compared):
        yield Finding(
            "collectives of virtual devices",
            f"devices spend {format_seconds(exposed)} in collectives ({share(exposed, compared)}), waiting for devices "
            "that share their cores included",
            "take which collectives there are and what they move from here, their time from the target's compiler",
            exposed,
        )


def _axes(compared: Compared) -> set[str]:
    return {"+".join(one.axes) for one in compared.measured.collectives if one.axes}
