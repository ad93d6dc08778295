"""What `validate` found, as a value and as JSON, schema `jaxplan.validate/1`; its keys do not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol

from jaxplan.report.finite import finite
from jaxplan.validate import varies as varies_file
from jaxplan.validate.bars import Bar, bars, judged_rows
from jaxplan.validate.memory_statistics import OutOfMemory, memory_statistics, out_of_memory
from jaxplan.validate.ranking import Ranking, RankingSummary, rankings, summaries
from jaxplan.validate.rivals import Beside, beside
from jaxplan.validate.row import Row
from jaxplan.validate.statistics import Group, groups

SCHEMA = "jaxplan.validate/1"
CALIBRATED = "calibrated on the fitting set"


class Parameter(Protocol):
    """A number of the calibration (`machine.calibration.Parameter`)."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def prior(self) -> Any: ...
    @property
    def source(self) -> str: ...
    @property
    def fitted(self) -> bool: ...


@dataclass(frozen=True)
class ValidateReport:
    """Predictions of published runs, and everything that is computed from them.

    Attributes:
        rows: the runs that are judged, of one part or of all.
        source: the file that they were read from, in words.
        part: `check`, `fit` or `all`: which runs were asked for.
        calibration: how the parameters behind the rows were fitted, in words.
        parameters: the numbers of the calibration, fitted or not.
        baselines: the naive predictions of the same runs, by name.
        left_out: what was left out of the fit of each row (`source`, `framework`) -> rows predicted so.
        class_of: the class of a run's `varies`.
    """

    rows: tuple[Row, ...]
    source: str = ""
    part: str = "all"
    calibration: str = CALIBRATED
    parameters: tuple[Parameter, ...] = ()
    baselines: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    left_out: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    class_of: Callable[[str | None], str] = varies_file.class_of

    @property
    def judged_part(self) -> str:
        """The part whose grade A rows the bars are about."""
        return "fit" if self.part == "fit" else "check"

    @cached_property
    def judged(self) -> tuple[Row, ...]:
        return judged_rows(self.rows, self.judged_part)

    @cached_property
    def bars(self) -> tuple[Bar, ...]:
        return bars(self.judged, self.class_of)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return groups(self.rows)

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        return rankings(self.rows, self.class_of)

    @cached_property
    def ranking_summaries(self) -> tuple[RankingSummary, ...]:
        return summaries(self.rankings)

    @cached_property
    def verdicts(self) -> OutOfMemory:
        return out_of_memory(self.rows)

    @cached_property
    def beside(self) -> tuple[Beside, ...]:
        return beside(self.rows)

    @cached_property
    def reasons(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Why runs are not predicted, and which, the commonest reason first."""
        counts = Counter(row.not_predicted for row in self.rows if row.not_predicted is not None)
        order = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return tuple((reason, tuple(r.id for r in self.rows if r.not_predicted == reason)) for reason, _ in order)


def validate_json(report: ValidateReport) -> dict[str, Any]:
    """Schema `jaxplan.validate/1`: every run, predicted or with the reason why not, and the errors of every group."""
    return finite({
        "schema": SCHEMA,
        "runs": report.source,
        "part": report.part,
        "calibration": report.calibration,
        "rows": [row_json(row) for row in report.rows],
        "groups": [group_json(group) for group in report.groups],
        "bars": [{**asdict(bar), "passed": bar.passed} for bar in report.bars],
        "bars_are_about": f"grade A rows of the part {report.judged_part}",
        "rankings": [asdict(ranking) for ranking in report.rankings],
        "ranking_classes": [asdict(one) for one in report.ranking_summaries],
        "memory": [asdict(one) for one in memory_statistics(report.rows)],
        "out_of_memory": {**asdict(report.verdicts), "refused_share": report.verdicts.refused_share},
        "baselines": {name: _named_groups(rows) for name, rows in report.baselines.items()},
        "left_out": {by: _named_groups(rows) for by, rows in report.left_out.items()},
        "rivals": [{**one.rival.model_dump(), "ours": asdict(one.ours)} for one in report.beside],
        "parameters": [_parameter(parameter) for parameter in report.parameters],
    })


def row_json(row: Row) -> dict[str, Any]:
    """One run: the keys of the schema first, then what explains them."""
    return {
        "id": row.id,
        "predicted_step_time_s": row.predicted_step_time_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "published_step_time_s": row.published_step_time_s,
        "error": row.error,
        "predicted_memory_bytes": row.predicted_memory_bytes,
        "published_memory_bytes": row.published_memory_bytes,
        "fits": row.fits,
        "not_predicted": row.not_predicted,
        **{name: getattr(row, name) for name in ("chip", "framework", "group", "kind", "grade", "part", "devices")},
        **{name: getattr(row, name) for name in ("source", "series", "varies", "oom", "doubt")},
        "ledger_s": dict(row.ledger_s),
        "memory_error": row.memory_error,
        "memory_kind": row.memory_kind or None,
        "capacity_bytes": row.capacity_bytes,
    }


def group_json(group: Group) -> dict[str, Any]:
    return {"by": group.by, "name": group.name, **asdict(group.statistics)}


def _named_groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [group_json(group) for group in groups(rows)]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {name: getattr(parameter, name) for name in ("name", "value", "unit", "prior", "source", "fitted")}
