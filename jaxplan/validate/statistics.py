"""How far predicted step times are off, over rows and over groups of rows. Pure functions; no JAX here.

The error of a row is predicted / published - 1. Rows without a published or a predicted time count in `rows` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.validate.row import Row

LARGE_ERROR_PERCENTILE = 95
FLOPS_OF_A_PARAMETER = 6    # a matmul parameter costs a token 2 FLOPs forward and 4 backward (Kaplan et al. 2020, 2.1)
PARAMETER_BUCKETS = ((3e9, "under 3 B"), (13e9, "3 to 13 B"), (40e9, "13 to 40 B"), (100e9, "40 to 100 B"))
LARGEST_MODELS = "100 B and more"
DEVICE_BUCKETS = ((8, "1 to 8"), (64, "9 to 64"), (256, "65 to 256"), (1024, "257 to 1,024"))
LARGEST_MACHINES = "more than 1,024"
UNKNOWN = "not known"


@dataclass(frozen=True)
class StepStatistics:
    """Errors of predicted step times; None where no row has one.

    Attributes:
        rows: all rows; `predicted` of them have a prediction, and `count` of those a published step time beside it.
        mean_absolute_error: mean of |error| (MAPE).
        mean_error, median_error: the signed bias; below 0 the predictions are too fast.
        p95_absolute_error: 95th percentile of |error|, interpolated linearly between rows.
        worst_absolute_error: the largest |error|.
        coverage: share of rows whose published time lies in [low, high].
        median_high_over_low: how wide these intervals are.
    """

    rows: int
    predicted: int
    count: int
    mean_absolute_error: float | None
    mean_error: float | None
    median_error: float | None
    p95_absolute_error: float | None
    worst_absolute_error: float | None
    coverage: float | None
    median_high_over_low: float | None


@dataclass(frozen=True)
class Group:
    """The statistics of the rows that agree in one thing (`by`: chip, framework...), whose value is `name`."""

    by: str
    name: str
    statistics: StepStatistics


def step_statistics(rows: Sequence[Row]) -> StepStatistics:
    """Errors, bias and coverage of these rows."""
    predicted = sum(row.predicted for row in rows)
    compared = [row for row in rows if row.error is not None]
    if not compared:
        return StepStatistics(len(rows), predicted, 0, None, None, None, None, None, None, None)
    published = _array(row.published_step_time_s for row in compared)
    low, high = _array(row.low_s for row in compared), _array(row.high_s for row in compared)
    error = _array(row.error for row in compared)
    size = np.abs(error)
    width = np.divide(high, low, out=np.full(len(low), np.inf), where=low > 0)
    return StepStatistics(
        rows=len(rows),
        predicted=predicted,
        count=len(compared),
        mean_absolute_error=float(size.mean()),
        mean_error=float(error.mean()),
        median_error=float(np.median(error)),
        p95_absolute_error=float(np.percentile(size, LARGE_ERROR_PERCENTILE)),
        worst_absolute_error=float(size.max()),
        coverage=float(((low <= published) & (published <= high)).mean()),
        median_high_over_low=float(np.median(width)),
    )


def parameters_bucket(row: Row) -> str:
    """Model size by what a token costs: model FLOPs of a token / 6, which counts active experts only.

    Attention adds to it: a model with a very long sequence counts as somewhat larger than its parameters.
    """
    flops = row.flops_per_token
    if flops is None:
        return UNKNOWN
    below = (name for limit, name in PARAMETER_BUCKETS if flops / FLOPS_OF_A_PARAMETER < limit)
    return next(below, LARGEST_MODELS)


def devices_bucket(row: Row) -> str:
    return next((name for limit, name in DEVICE_BUCKETS if row.devices <= limit), LARGEST_MACHINES)


#: What rows are grouped by, in the order in which it is shown.
DIMENSIONS: Mapping[str, Callable[[Row], str]] = {
    "all": lambda row: "all",
    "group": lambda row: row.group,
    "chip": lambda row: row.chip,
    "framework": lambda row: row.framework,
    "kind": lambda row: row.kind,
    "model size": parameters_bucket,
    "devices": devices_bucket,
    "grade": lambda row: row.grade,
    "part": lambda row: row.part,
    "source": lambda row: row.source,
}

#: Names that have an order of their own; others are sorted as text.
ORDERS: Mapping[str, Sequence[str]] = {
    "model size": [*(name for _, name in PARAMETER_BUCKETS), LARGEST_MODELS, UNKNOWN],
    "devices": [*(name for _, name in DEVICE_BUCKETS), LARGEST_MACHINES],
}


def groups(rows: Sequence[Row], by: Iterable[str] = tuple(DIMENSIONS)) -> tuple[Group, ...]:
    """The statistics of every group of rows; `all` first, and present also where there are no rows."""
    found = []
    for dimension in by:
        members: dict[str, list[Row]] = {"all": []} if dimension == "all" else {}
        for row in rows:
            members.setdefault(DIMENSIONS[dimension](row), []).append(row)
        order = {name: place for place, name in enumerate(ORDERS.get(dimension, ()))}
        names = sorted(members, key=lambda name: (order.get(name, len(order)), name))
        found += [Group(dimension, name, step_statistics(members[name])) for name in names]
    return tuple(found)


def worst(rows: Iterable[Row], count: int) -> tuple[Row, ...]:
    """The rows with the largest |error|, the largest first."""
    compared = [row for row in rows if row.error is not None]
    return tuple(sorted(compared, key=lambda row: (-abs(row.error or 0.0), row.id))[:count])


def _array(values: Iterable[float | None]) -> np.ndarray:
    return np.array(list(values), dtype=float)
