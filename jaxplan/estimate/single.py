"""The estimate of one plan, outside of a search."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.ledger import Estimate, estimate_of
from jaxplan.estimate.network import Network
from jaxplan.estimate.step import Estimator
from jaxplan.estimate.terms import AXES, rows
from jaxplan.estimate.view import View
from jaxplan.plan.plan import Plan
from jaxplan.plan.remat import policy
from jaxplan.workload.cut import cut
from jaxplan.workload.table import Table


def estimate_plan(plan: Plan, table: Table) -> Estimate:
    """The whole ledger of a plan, as a search would make it from the table of the plan's workload."""
    data, fsdp, tensor = (plan.size_of_role(axis) for axis in AXES)
    view = View(table, plan.rules, cut(table, policy(plan.remat).saved))
    network = Network(plan.machine, [(data, fsdp, tensor)])
    variables = rows((data, fsdp, tensor), plan.microbatches, plan.loss_chunks)
    return estimate_of(Estimator(view, plan.machine).evaluate(variables, np.array([0]), network), 0)
