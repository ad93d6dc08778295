"""The estimate of one plan, outside of a search."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.ledger import Estimate, estimate_of
from jaxplan.estimate.network import Network
from jaxplan.estimate.schedule_terms import pipelines
from jaxplan.estimate.step import Estimator
from jaxplan.estimate.terms import VARIABLES, Pipeline, rows
from jaxplan.estimate.view import View
from jaxplan.plan.plan import Plan
from jaxplan.plan.remat import policy
from jaxplan.plan.sharding import AXES
from jaxplan.workload.cut import policy_cut
from jaxplan.workload.table import Table


def estimate_plan(plan: Plan, table: Table) -> Estimate:
    """The whole ledger of a plan, as a search would make it from the table of the plan's workload."""
    sizes = tuple(plan.size(axis) for axis in AXES)
    estimator, variables = prepared(plan, table)
    found = estimator.evaluate(variables, np.array([0]), Network(plan.machine, [sizes]))
    return estimate_of(found, 0, sizes, float(variables[0, VARIABLES.index("bubble")]))


def prepared(plan: Plan, table: Table) -> tuple[Estimator, np.ndarray]:
    """The estimator of a plan's rules and rematerialization, and the plan's variables, float [1, variables]."""
    view = View(table, plan.rules, policy_cut(table, policy(plan.remat)), plan.workload.model is not None)
    sizes = tuple(plan.size(axis) for axis in AXES)
    ulysses = plan.context_attention == "ulysses"
    counts = plan.microbatches, plan.loss_chunks
    variables = rows(sizes, *counts, pipeline_of(plan), ulysses, plan.offload_optimizer)
    work = plan.workload
    return Estimator(view, plan.machine, work.busiest_share, work.matmul_dtype), variables


def pipeline_of(plan: Plan) -> Pipeline | None:
    """What a plan's stages add; None where it has none."""
    if plan.stages == 1:
        return None
    return pipelines([plan.schedule], *np.array([[0], [plan.stages], [plan.microbatches], [plan.repeats]]))
