"""Devices have gaps within a step.

Applies where no operation runs on a device between its first and its last of a step: kernels too short for their
launches, or, on the host platform, more virtual devices than cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.profile.findings.finding import Compared, Finding, share, spent, worth
from jaxplan.profile.kinds import LOOP
from jaxplan.profile.ledger import IDLE
from jaxplan.units import format_seconds

WHY = {
    "cpu": "virtual devices share the cores: read times of this platform as order, not as speed",
    "gpu": "larger microbatches make longer kernels; command buffers (--xla_gpu_enable_command_buffer) launch many at "
    "once",
    "tpu": "larger microbatches, or fewer trips of loops (unroll), leave fewer gaps",
}


def find(compared: Compared) -> Iterator[Finding]:
    seconds = spent(compared, IDLE) + spent(compared, LOOP)
    if worth(seconds, compared):
        yield Finding(
            "gaps between operations",
            f"nothing runs for {format_seconds(seconds)} between a step's operations ({share(seconds, compared)})",
            WHY[compared.measured.platform],
            seconds,
        )
