"""The figures of one profile as values: the median step's ledger, operations, collectives, devices.

Ledger, operations and collectives are those of the median step, the mean over devices: the ledger adds up to the step,
and what is exposed of collectives over an axis adds up to that axis's line. Devices are means over all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxplan.compile.timeline import Entry
from jaxplan.profile.kinds import Kind
from jaxplan.profile.trace import Trace


@dataclass(frozen=True)
class OperationTime:
    """An operation's own time, without the operations that it covers.

    Attributes:
        seconds: of all executions in the step; executions: how many.
        flops, nbytes: of one execution, where the HLO tells; nbytes of a collective by the convention of its kind.
        source: `file:line` of the user's program; op_name: JAX's name stack.
    """

    name: str
    kind: str
    entry: str
    axes: tuple[str, ...]
    executions: float
    seconds: float
    flops: float = 0.0
    nbytes: float = 0.0
    source: str = ""
    op_name: str = ""
    program: str = ""


@dataclass(frozen=True)
class CollectiveTime:
    """All collectives of one kind along the same mesh axes in the step.

    Attributes:
        seconds: from begin to end, hidden or not, waiting for the other devices included.
        exposed_s: what of it no compute hides.
        nbytes: of all executions, by the conventions of `jaxplan.machine.collectives`; 0 where the HLO does not tell.
    """

    kind: str
    axes: tuple[str, ...]
    executions: float
    seconds: float
    exposed_s: float
    nbytes: float


@dataclass(frozen=True)
class DeviceTime:
    """One device, the mean over steps.

    Attributes:
        work_s: it computes or copies; exposed_s: it waits for collectives.
        behind_s: how much longer it works than the median device: the others wait for it.
    """

    host: str
    ordinal: int
    work_s: float
    exposed_s: float
    idle_s: float
    behind_s: float


@dataclass(frozen=True)
class Measured:
    """A profile's figures.

    Attributes:
        steps: seconds of each; step: the row of the median one, whose ledger this is.
        ledger: largest first; adds up to `step_s`.
        recompute: what of the ledger's compute is done again under a rematerialization policy, by entry.
        attributed_s, total_s: own times of all operations, and the time that tracks are busy; equal.
        unknown: share of the operations' time that the HLO does not know.
        trace, kinds: what this was made from, for `measured_timeline`.
    """

    platform: str
    program: str
    steps: tuple[float, ...]
    step: int
    ledger: tuple[Entry, ...]
    recompute: tuple[Entry, ...]
    devices: tuple[DeviceTime, ...]
    operations: tuple[OperationTime, ...]
    collectives: tuple[CollectiveTime, ...]
    attributed_s: float
    total_s: float
    unknown: float
    axes: Mapping[str, int]
    notes: tuple[str, ...]
    trace: Trace = field(repr=False)
    kinds: tuple[Kind, ...] = field(repr=False)
    kind_of_operation: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        total = sum(entry.seconds for entry in self.ledger)
        if abs(total - self.step_s) > 1e-6 * self.step_s:
            raise ValueError(f"the ledger must add up to the step: got {total}, expected {self.step_s}")

    @property
    def step_s(self) -> float:
        """Seconds of the median step (of two in the middle the shorter)."""
        return self.steps[self.step]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "platform": self.platform,
            "program": self.program,
            "steps_s": list(self.steps),
            "step_time_s": self.step_s,
            "ledger": [{"name": entry.name, "seconds": entry.seconds} for entry in self.ledger],
            "recompute": [{"name": entry.name, "seconds": entry.seconds} for entry in self.recompute],
            "devices": [vars(device) for device in self.devices],
            "collectives": [{**vars(one), "axes": list(one.axes)} for one in self.collectives],
            "operations": [{**vars(one), "axes": list(one.axes)} for one in self.operations],
            "attributed_s": self.attributed_s,
            "total_s": self.total_s,
            "unknown": self.unknown,
            "notes": list(self.notes),
        }
