"""Plans for a machine that has lost a part, as data: the key `degraded` of `goodput`'s JSON.

    unit        {"word": "host" | "slice" | "size", "hosts": of one, "count": of the machine}
    full        the running plan: {"machine", "chips", "mesh", "batch", "step_time_s": {"value", "source"},
                "tokens_per_s"}
    swap        the same plan on other hosts: {"compile": COMPILE, "changes": [text]}
    cases       [{"lost", "machine": null | name, "chips", "why_not", "would_fit": [{"words", "flags", "total_bytes"}],
                "ways": [WAY]}], by `lost`
    over_time   [{"strategy": "wait" | "keep the batch" | "fastest way", "spares", "throughput", "stopped", "restarts",
                "levels": [{"lost", "share", "relative"}]}]: throughput over the full plan's without any failure
    notes       [text]
    stopped     why not everything was searched; empty if it was

    WAY         {"kind", "machine", "chips", "idle_chips", "batch": {"before", "rows", "run"}, "learning_rate": null |
                {"ratio", "linear", "square_root"}, "readers": [hosts before, hosts now], "changes": [text], "why_not",
                "plan": path, "mesh", ... the decisions of `search`'s plans, "fits",
                "memory_bytes", "step_time_s", "tokens_per_s",
                "relative": {"value", "source"}, "compile": COMPILE}
    COMPILE     null | {"status", "seconds", "from_cache", "message"}: null where no compiler was asked
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxplan.compile.evidence import Evidence
from jaxplan.goodput.degraded import OverTime
from jaxplan.machine.left import Unit
from jaxplan.machine.topology import Machine
from jaxplan.plan.decisions import shown
from jaxplan.plan.plan import Plan
from jaxplan.report.finite import finite
from jaxplan.report.search import Row
from jaxplan.report.words import count_words
from jaxplan.search.degraded import Way
from jaxplan.search.why import Change

WAIT, KEEP, FASTEST = "wait", "keep the batch", "fastest way"
SAME_PROGRAM = "nothing changes: program, batch and mesh are the same, and nothing in them names a host"


@dataclass(frozen=True)
class Taken:
    """One way after its search.

    Attributes:
        row: its best plan; None where nothing fits, and `why_not` says why.
        relative: its sequences a second over the running plan's, of the same source both.
        compiled: what the target's compiler said of the plan; None where it was not asked.
        path: of its plan file.
        same_state: whether its arrays are those of the running plan.
    """

    way: Way
    row: Row | None = None
    relative: float = 0.0
    relative_source: str = ""
    compiled: Evidence | None = None
    path: str | None = None
    same_state: bool = True
    why_not: str = ""


@dataclass(frozen=True)
class Case:
    """What can be done without some units.

    Attributes:
        left: the machine; None where nothing is left.
        changes: the smallest changes that would fit, where no way does.
    """

    lost: int
    left: Machine | None
    ways: tuple[Taken, ...] = ()
    changes: tuple[Change, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class Strategy:
    """What a job does when nodes are missing, in the long run."""

    name: str
    over_time: OverTime


@dataclass(frozen=True)
class DegradedReport:
    """Everything about one running plan and the machines that it may find itself on.

    Attributes:
        step_s, step_source: of the running plan, by the best that is known.
        swap: what the compiler said of the running plan; None where it was not asked.
    """

    plan: Plan
    unit: Unit
    step_s: float
    step_source: str
    swap: Evidence | None = None
    cases: tuple[Case, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = ""

    def to_json(self) -> dict[str, Any]:
        """The document's key `degraded`."""
        plan = self.plan
        return finite({
            "unit": asdict(self.unit),
            "full": {
                "machine": plan.machine.name,
                "chips": plan.machine.chips,
                "mesh": plan.sizes,
                "batch": plan.workload.batch,
                "step_time_s": {"value": self.step_s, "source": self.step_source},
                "tokens_per_s": plan.workload.tokens / self.step_s,
            },
            "swap": {"compile": _compile(self.swap), "changes": [SAME_PROGRAM]},
            "cases": [_case(self, case) for case in self.cases],
            "over_time": [_strategy(strategy) for strategy in self.strategies],
            "notes": list(self.notes),
            "stopped": self.stopped,
        })


def optimizer_words(plan: Plan, way: Way) -> str:
    """What a way changes for the optimizer."""
    batch, rate = plan.workload.batch, way.learning_rate(plan.workload.batch)
    if rate is None:
        padding = (
            f"; {way.padding:,} of the {way.workload.batch:,} rows of a step are padding, which the loss must neither "
            "add up nor count: the catalogue's decoder, which takes the mean over all rows, cannot"
        )
        kept = f"the optimizer's batch stays {batch:,} sequences, its learning rate and schedule what they are"
        return kept + (padding if way.padding else "")
    return (
        f"the optimizer's batch goes from {batch:,} to {way.rows:,} sequences, times {rate.ratio:.4g}: learning rate "
        f"times {rate.linear:.4g} by the linear rule, times {rate.square_root:.4g} by the square-root rule; nobody "
        "applies it for you"
    )


def data_words(plan: Plan, way: Way) -> str:
    """How the position in the data goes on, in global samples."""
    batch, hosts, now = plan.workload.batch, plan.machine.hosts, way.machine.hosts
    readers = f"read by {count_words(now, 'host')}" + (f" instead of {hosts:,}" if now != hosts else ", as before")
    if way.rows == batch:
        return f"data goes on at sample steps x {batch:,}, {readers}"
    return (
        f"data goes on at the sample that was reached, {readers}; steps of {way.rows:,} samples follow, so that it is "
        f"no longer steps x {batch:,}, and what is counted in steps has {batch / way.rows:.4g} times as many to go"
    )


def state_words(taken: Taken) -> str:
    """Whether a checkpoint of the running plan can be restored."""
    if taken.same_state:
        return "checkpoints hold the same arrays in the same order: restoring them only reshards"
    return "checkpoints hold other arrays than this plan has: it cannot restore them"


def _compile(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {
        "status": evidence.status,
        "seconds": evidence.seconds,
        "from_cache": evidence.from_cache,
        "message": evidence.message,
    }


def _case(report: DegradedReport, case: Case) -> dict[str, Any]:
    return {
        "lost": case.lost,
        "machine": case.left.name if case.left is not None else None,
        "chips": case.left.chips if case.left is not None else 0,
        "why_not": case.why_not,
        "would_fit": [asdict(change) for change in case.changes],
        "ways": [_way(report, taken) for taken in case.ways],
    }


def _way(report: DegradedReport, taken: Taken) -> dict[str, Any]:
    way, plan = taken.way, report.plan
    rate = way.learning_rate(plan.workload.batch)
    known = {"ratio": rate.ratio, "linear": rate.linear, "square_root": rate.square_root} if rate is not None else None
    return {
        "kind": way.kind,
        "machine": way.machine.name,
        "chips": way.machine.chips,
        "idle_chips": way.idle_chips,
        "batch": {"before": plan.workload.batch, "rows": way.rows, "run": way.workload.batch},
        "learning_rate": known,
        "readers": [plan.machine.hosts, way.machine.hosts],
        "changes": [optimizer_words(plan, way), data_words(plan, way), *([state_words(taken)] if taken.row else [])],
        "why_not": taken.why_not,
        "plan": taken.path,
        **_found(report, taken),
        "compile": _compile(taken.compiled),
    }


def _found(report: DegradedReport, taken: Taken) -> Mapping[str, Any]:
    """Of the best plan; nothing where there is none."""
    row = taken.row
    if row is None:
        return {"fits": False}
    tokens = report.plan.workload.tokens / report.step_s
    return {
        **shown(row.plan),
        "fits": row.fits,
        "memory_bytes": dict(row.memory_bytes),
        "step_time_s": dict(row.step_time_s),
        "tokens_per_s": tokens * taken.relative,
        "relative": {"value": taken.relative, "source": taken.relative_source},
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    found = strategy.over_time
    return {
        "strategy": strategy.name,
        "spares": found.spares,
        "throughput": found.throughput,
        "stopped": found.shares[-1],
        "restarts": found.returns,
        "levels": [
            {"lost": level.lost, "share": share, "relative": level.relative}
            for level, share in zip(found.levels, found.shares, strict=False)
        ],
    }
