"""One device works longer than the others, which wait for it in their collectives.

Applies where the slowest device's own work exceeds the median device's by what is worth a word; not to the host
platform, where virtual devices share cores and chance says who is behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, share, worth
from jaxplan.units import format_seconds


def find(compared: Compared) -> Iterator[Finding]:
    devices = compared.measured.devices
    last = max(devices, key=lambda device: device.behind_s)
    shared = compared.measured.platform == "cpu"
    if len(devices) > 2 and not shared and worth(last.behind_s, compared):
        yield Finding(
            "a straggler",
            f"device {last.ordinal} of {last.host} works {format_seconds(last.behind_s)} longer a step than the median "
            f"device ({share(last.behind_s, compared)}); the others wait for it in their collectives",
            "compare its clock and temperature with the others'; if its work is larger (a pipeline's last stage, hot "
            "experts), balance the plan",
            last.behind_s,
        )
