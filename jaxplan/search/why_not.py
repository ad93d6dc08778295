"""Why not another plan: it is illegal, it does not fit, or it is slower, and by what. Estimates only. No JAX here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxplan.errors import InputError
from jaxplan.estimate.ledger import Estimate
from jaxplan.estimate.single import estimate_plan
from jaxplan.plan.plan import Plan
from jaxplan.plan.remat import policies_of, policy
from jaxplan.plan.schedule import SCHEDULES, reason
from jaxplan.plan.sharding import AXES, BATCH_AXES, sizes_in_order
from jaxplan.search.asked import Asked
from jaxplan.search.dims import dim_sizes
from jaxplan.search.legal import RuleSet, mesh_reason, rules_reason
from jaxplan.search.meshes import searched_axes
from jaxplan.search.neighbours import differences, normal, part_of, sizes_of
from jaxplan.search.rank import AS_FAST, MEMORY_MARGIN, Ranking, rank
from jaxplan.search.space import EXECUTABLE, Space, enumerate_space
from jaxplan.search.why import binding_term
from jaxplan.workload.table import Table

Verdict = Literal["illegal", "does not fit", "slower", "as fast", "faster", "the same plan"]
Of = Mapping[str, int]      # sizes by axis, all `AXES`


@dataclass(frozen=True)
class WhyNot:
    """The answer.

    Attributes:
        reason: why it is illegal; empty where it is not.
        plan: the best plan with the decisions that were asked about: the fastest that fits, else the smallest. On the
            mesh of the plan it is compared with, all other decisions are as there.
        estimate: of that plan.
        over_bytes: by how much it misses, with the margin that a search adds to estimates; 0 where it fits.
        binding: the largest part of its memory, where it does not fit.
        slower_s: its step time less the plan's; the sum of `time_s`.
        time_s: by entry of the time ledgers, its seconds less the plan's, the largest change first.
        memory_bytes: the same of the memory ledgers.
        considered: how many plans have the decisions that were asked about.
    """

    asked: Asked
    verdict: Verdict
    reason: str = ""
    plan: Plan | None = None
    estimate: Estimate | None = None
    over_bytes: float = 0.0
    binding: str = ""
    slower_s: float = 0.0
    time_s: Mapping[str, float] | None = None
    memory_bytes: Mapping[str, float] | None = None
    considered: int = 0


def why_not(asked: Asked, plan: Plan, estimate: Estimate, table: Table, memory_ratio: float = 1.0) -> WhyNot:
    """Compares a plan with the best one that has other decisions.

    Args:
        estimate: of the plan.
        memory_ratio: of the plan: what it is known to need over what is estimated.
    """
    sizes = sizes_in_order(asked.sizes) if asked.sizes else sizes_of(plan)
    of = dict(zip(AXES, sizes, strict=True))
    named = "schedule" in asked.decisions and of["stage"] > 1
    schedules = (str(asked.decisions["schedule"]),) if named else EXECUTABLE
    try:
        space = enumerate_space(plan.workload, table, plan.machine, schedules, only=[sizes])
    except InputError:
        return WhyNot(asked, "illegal", illegal(of, asked, plan, table))
    rows = [row for row in range(len(space)) if _has(_made(space, row, plan), asked)]
    if sizes == sizes_of(plan):
        rows = _alike(rows, space, plan)
    unsearched = any(of[axis] > 1 for axis in set(AXES) - set(searched_axes(plan.workload, dim_sizes(table))))
    if not rows or unsearched:
        return WhyNot(asked, "illegal", illegal(of, asked, plan, table))
    space = part_of(space, np.array(rows))
    ranking = rank(space, table, plan.machine)
    if ranking.network.illegal:
        return WhyNot(asked, "illegal", ranking.network.illegal[0], considered=len(rows))
    row = _best(ranking, memory_ratio)
    other = _made(space, row, plan)
    return _compared(asked, other, estimate_plan(other, table), plan, estimate, memory_ratio, len(rows))


def _made(space: Space, row: int, plan: Plan) -> Plan:
    return space.plan(row, plan.machine, plan.workload, plan.attention, plan.compiler_flags)


def _has(plan: Plan, asked: Asked) -> bool:
    return all(getattr(plan, name) == value for name, value in asked.decisions.items())


def _alike(rows: list[int], space: Space, plan: Plan) -> list[int]:
    """On the plan's own mesh what is not asked about stays as it is, as far as that is possible."""
    differs = np.sum(list(differences(space, normal(plan)).values()), axis=0)
    fewest = min((differs[row] for row in rows), default=0)
    return [row for row in rows if differs[row] == fewest]


def _best(ranking: Ranking, memory_ratio: float) -> int:
    """The fastest that fits, else the smallest."""
    needed = ranking.total_bytes * memory_ratio * (1 + MEMORY_MARGIN)
    order = ranking.order(fits=needed <= ranking.machine.device_hbm_bytes)
    return int(order[0]) if len(order) else int(ranking.total_bytes.argmin())


def _compared(
    asked: Asked, other: Plan, its: Estimate, plan: Plan, estimate: Estimate, memory_ratio: float, considered: int
) -> WhyNot:
    over = its.total_bytes * memory_ratio * (1 + MEMORY_MARGIN) - plan.machine.device_hbm_bytes
    slower = its.value_s - estimate.value_s
    verdict: Verdict = "slower" if slower > 0 else "faster"
    if abs(slower) <= AS_FAST * estimate.value_s:
        verdict = "as fast"
    if over > 0:
        verdict = "does not fit"
    if other.fingerprint == normal(plan).fingerprint:
        verdict = "the same plan"
    return WhyNot(
        asked=asked,
        verdict=verdict,
        plan=other,
        estimate=its,
        over_bytes=max(0.0, over),
        binding=binding_term(its) if over > 0 else "",
        slower_s=slower,
        time_s=_difference(its.time_s, estimate.time_s),
        memory_bytes=_difference(its.memory_bytes, estimate.memory_bytes),
        considered=considered,
    )


def _difference(its: Mapping[str, float], mine: Mapping[str, float]) -> dict[str, float]:
    """Entry by entry, the largest change first; what does not change is left out."""
    changes = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {**mine, **its}}
    return {name: changes[name] for name in sorted(changes, key=lambda n: -abs(changes[n])) if changes[name]}


def illegal(of: Of, asked: Asked, plan: Plan, table: Table) -> str:
    """Why no plan has these sizes and decisions, in a sentence."""
    return broken_rule(of, asked, plan, table) or "no plan can have all of these at once"


def broken_rule(of: Of, asked: Asked, plan: Plan, table: Table) -> str:
    """The rule of the search that these sizes and decisions break, or an empty text."""
    limits = dim_sizes(table)
    searched = searched_axes(plan.workload, limits)
    strange = [axis for axis in AXES if of[axis] > 1 and axis not in searched]
    if strange:
        return f"the axis {strange[0]} means nothing to {plan.workload.name}, which has {', '.join(searched)}"
    return (
        mesh_reason(of, plan.workload, limits)
        or _rules(of, asked, plan, limits)
        or _steps(of, asked, plan, limits)
        or _policy(asked, plan)
        or _host(asked, plan)
    )


def _rules(of: Of, asked: Asked, plan: Plan, limits: Mapping[str, int]) -> str:
    given = asked.decisions
    rules = RuleSet(
        zero1=bool(given.get("zero1", False)),
        zero2=bool(given.get("zero2", False)),
        sequence_sharding=bool(given.get("sequence_sharding", True)),
        context=str(given.get("context_attention", "ring")),
        offload_optimizer=bool(given.get("offload_optimizer", False)),
    )
    if rules.zero2 and given.get("microbatches") == 1:
        return "ZeRO-2 keeps no gradients where there is one microbatch"
    return rules_reason(of, rules, plan.workload, limits)


def _steps(of: Of, asked: Asked, plan: Plan, limits: Mapping[str, int]) -> str:
    """Microbatches that do not divide the batch; schedules that do not take the counts."""
    given, batch = asked.decisions, math.prod(of[axis] for axis in BATCH_AXES)
    micro = int(given.get("microbatches", 0))
    if micro and plan.workload.batch % (batch * micro):
        large = [axis for axis in BATCH_AXES if of[axis] > 1]
        return f"batch is not divisible by {' x '.join([*large, 'microbatches'])}"
    if "schedule" not in given and "repeats" not in given:
        return ""
    layers = plan.workload.model.repeated_layers if plan.workload.model is not None else limits.get("layers", 1)
    repeats = int(given.get("repeats", 1))
    name = str(given.get("schedule", "gpipe" if repeats == 1 else "circular"))
    if SCHEDULES[name].needs_repeats and "repeats" not in given:
        repeats = 2
    return reason(name, of["stage"], micro or plan.workload.batch // batch, repeats, layers)


def _policy(asked: Asked, plan: Plan) -> str:
    name = str(asked.decisions.get("remat", ""))
    host = plan.machine.device_host_bytes_per_s is not None
    if not name or name in policies_of(plan.workload, groups=True, host=host):
        return ""
    if plan.workload.model is None:
        return f"{plan.workload.name} checkpoints as it is written"
    wanted = policy(name)
    if wanted.group > 1:
        return f"{name} needs layers in multiples of {wanted.group}"
    if wanted.offloaded:
        return f"{name} keeps values in the host's memory: {_no_link(plan)}"
    return f"{name} is no policy of the reference decoder"


def _host(asked: Asked, plan: Plan) -> str:
    if asked.decisions.get("offload_optimizer") and plan.machine.device_host_bytes_per_s is None:
        return f"the optimizer's state cannot lie in the host's memory: {_no_link(plan)}"
    return ""


def _no_link(plan: Plan) -> str:
    return f"the catalogue knows no link to it on {plan.machine.name}"
