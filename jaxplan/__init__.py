"""jaxplan: how to shard a JAX training step over a machine, proven by the machine's own compiler.

    plan = jaxplan.load("plan.json")
    mesh = plan.mesh()
    state_shardings = plan.shardings(abstract_state)
    step = plan.jit(train_step)

Importing jaxplan imports no JAX: it is imported by the first call that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxplan.errors import InputError, JaxplanError, MissingError, VerdictError

if TYPE_CHECKING:
    from jaxplan.plan.plan import Plan
    from jaxplan.plan.record import PlanRecord
    from jaxplan.plan.step import PlanWarning
    from jaxplan.plan.use import LoadedPlan, load
    from jaxplan.workload.user import Program

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "JaxplanError",
    "LoadedPlan",
    "MissingError",
    "Plan",
    "PlanRecord",
    "PlanWarning",
    "Program",
    "VerdictError",
    "__version__",
    "load",
]

_LAZY = {
    "LoadedPlan": "jaxplan.plan.use",
    "Plan": "jaxplan.plan.plan",
    "PlanRecord": "jaxplan.plan.record",
    "PlanWarning": "jaxplan.plan.step",
    "Program": "jaxplan.workload.user",
    "load": "jaxplan.plan.use",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'jaxplan' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
