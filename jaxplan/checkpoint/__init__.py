"""Checkpoints that are proven when they are read: a thin layer over orbax, whose files they stay.

    from jaxplan.checkpoint import Checkpointer, Position, Preemption, Watchdog

    # the checkpointer last: what watches must still watch while the last save is awaited
    with Watchdog(600) as alive, Preemption(grace_s=25) as preemption, Checkpointer("checkpoints", keep=3) as saved:
        found = saved.restore(abstract_state)              # None where the folder holds no step
        state, first = (init(), 1) if found is None else (found.state, found.step + 1)
        for step in range(first, last + 1):
            state, metrics = train(state, batch(step))
            alive(step)
            stop = preemption.reached(step)
            if stop or step % 100 == 0:
                saved.save(step, state, loss=metrics["loss"], position=Position(step * batch_size))
            saved.check()                                  # an error of a save in the background shows here
            if stop:
                break

Importing this imports neither JAX nor orbax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxplan.checkpoint.checkpointer import Checkpointer
    from jaxplan.checkpoint.position import Position
    from jaxplan.checkpoint.preemption import Preemption
    from jaxplan.checkpoint.restore import Restored
    from jaxplan.checkpoint.watchdog import Watchdog

__all__ = ["Checkpointer", "Position", "Preemption", "Restored", "Watchdog"]

_LAZY = {
    "Checkpointer": "jaxplan.checkpoint.checkpointer",
    "Position": "jaxplan.checkpoint.position",
    "Preemption": "jaxplan.checkpoint.preemption",
    "Restored": "jaxplan.checkpoint.restore",
    "Watchdog": "jaxplan.checkpoint.watchdog",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'jaxplan.checkpoint' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
