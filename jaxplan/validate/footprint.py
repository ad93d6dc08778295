"""Memory of published runs beside what their devices offer: arrays over cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes.facts import stack
from jaxplan.estimate.shapes.memory import memory
from jaxplan.validate.capacity import capacity_bytes
from jaxplan.validate.facts import Case
from jaxplan.validate.keeping import NEEDED, Fitted, fitted_values, keeping_of


@dataclass(frozen=True)
class Footprint:
    """Bytes of one device, each an array over cases.

    Attributes:
        ledger: adds up to `value`, the figure of the kind that the source gives.
        needed: what must be free for the run to go through, whatever kind the source gives.
        fits: needed, and a margin of the model's own error, lie within the capacity.
    """

    ledger: Mapping[str, np.ndarray]
    needed: np.ndarray
    capacity: np.ndarray
    fits: np.ndarray

    @property
    def value(self) -> np.ndarray:
        return np.sum(np.stack(list(self.ledger.values())), axis=0)


def footprints(cases: Sequence[Case], fitted: Fitted | None = None) -> Footprint:
    """The footprint of every case, in their order."""
    fitted = fitted or fitted_values()
    facts = stack([case.facts for case in cases])
    figure = memory(facts, stack([keeping_of(case, fitted) for case in cases]))
    needed = memory(facts, stack([keeping_of(case, fitted, NEEDED) for case in cases])).value
    capacity = np.array([capacity_bytes(case) for case in cases])
    return Footprint(figure.ledger, needed, capacity, needed * (1 + fitted.margin) <= capacity)
