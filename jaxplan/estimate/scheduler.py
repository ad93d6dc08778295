"""Habits of the target's compiler that decide how much is alive at once.

Read off buffer assignments of compiled training steps (`benchmarks/compiled_accuracy.py` compiles them again).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scheduler:
    """What a compiler keeps alive beyond the operation that runs.

    Attributes:
        hoists_casts: weights are cast to the compute dtype once, before the loop over layers, and the sharded copies
            live as long as the loops.
        holds_gradients: a layer's weight gradients stay whole until the layer's end: their reduction runs in the
            background of what follows.
    """

    hoists_casts: bool
    holds_gradients: bool


SCHEDULERS = {
    "tpu": Scheduler(hoists_casts=True, holds_gradients=True),
    "cuda": Scheduler(hoists_casts=False, holds_gradients=False),
    "rocm": Scheduler(hoists_casts=False, holds_gradients=False),
    "cpu": Scheduler(hoists_casts=False, holds_gradients=False),    # chosen: as on GPUs; no host's memory was read
}
