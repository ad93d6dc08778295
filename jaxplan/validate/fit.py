"""Fits the calibration to the fitting set, and predicts runs without what they have in common with it.

Maximum a posteriori: log errors with a soft-L1 loss (a few published figures are wrong), each series weighted by the
square root of its runs (two sources have a third of the rows), and every parameter drawn to its prior by the width that
its source supports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import least_squares

from jaxplan.estimate.shapes.step import ledger_of
from jaxplan.machine.calibration import Calibration, Parameter
from jaxplan.validate.conventions import published_step_s
from jaxplan.validate.predict import Batch, cases_of, rows_of, unpredicted
from jaxplan.validate.published import PublishedRun
from jaxplan.validate.row import Row
from jaxplan.validate.split import explains, part_of, series_of, source_of

NOISE = 0.08            # of one published figure: runs of one identical configuration spread by 7%
SOFT = 0.10             # errors beyond this count linearly
WEIGHT_OF_GRADE = {"A": 1.0, "B": 0.7, "C": 0.3}
COVERAGE = 0.98
STEP = 0.02             # of a deviation, for differences
BY: dict[str, Callable[[PublishedRun], str]] = {"source": source_of, "framework": lambda run: run.framework}


class Fitting:
    """Runs with a published step time, and how well parameters explain them."""

    def __init__(self, runs: Sequence[PublishedRun], parameters: Sequence[Parameter]) -> None:
        cases, _ = cases_of(runs)
        able = [case for case in cases.values() if not case.run.oom and explains(case.run)]
        timed = [(case, published_step_s(case.run, case.facts.model)) for case in able]
        found = [(case, seconds) for case, seconds in timed if seconds]
        self.parameters = tuple(parameters)
        self.batch = Batch.of([case for case, _ in found], [p.name for p in parameters])
        self.runs = [case.run for case, _ in found]
        self.logs = np.log([seconds for _, seconds in found])

    def fit(self, where: np.ndarray, start: dict[str, float] | None = None, tries: int = 30) -> dict[str, float]:
        """Deviations from the priors, in widths, by name, that explain the runs at these positions best."""
        batch, logs = self.batch.part(where), self.logs[where]
        weights = _weights([self.runs[i] for i in where])
        used = np.asarray(batch.chosen.any(axis=(0, 1)))
        free = [i for i, p in enumerate(self.parameters) if p.fitted and used[i]]

        def residuals(deviations: np.ndarray) -> np.ndarray:
            values = self.values({self.parameters[i].name: z for i, z in zip(free, deviations, strict=True)})
            error = np.log(sum(ledger_of(batch.facts, batch.rates(values)).values())) - logs
            soft = np.sign(error) * np.sqrt(2 * SOFT**2 * (np.sqrt(1 + (error / SOFT) ** 2) - 1))
            return np.concatenate([soft * weights / NOISE, deviations])

        first = np.array([(start or {}).get(self.parameters[i].name, 0.0) for i in free])
        found = least_squares(residuals, first, diff_step=STEP, max_nfev=tries, x_scale=1.0)
        return {self.parameters[i].name: float(z) for i, z in zip(free, found.x, strict=True)}

    def values(self, deviations: dict[str, float]) -> dict[str, float]:
        return {p.name: p.at(deviations.get(p.name, 0.0)) for p in self.parameters}

    def errors(self, where: np.ndarray, deviations: dict[str, float]) -> np.ndarray:
        """Logarithms of predicted over published."""
        batch = self.batch.part(where)
        return np.log(batch.step(self.values(deviations)).value) - self.logs[where]


def _weights(runs: Sequence[PublishedRun]) -> np.ndarray:
    of_series = Counter(map(series_of, runs))
    return np.array([WEIGHT_OF_GRADE.get(run.grade, 0.3) * of_series[series_of(run)] ** -0.5 for run in runs])


def calibrated(runs: Sequence[PublishedRun], prior: Calibration) -> Calibration:
    """The calibration fitted to the fitting set of these runs, with its interval."""
    fitting = Fitting([run for run in runs if part_of(run) == "fit"], prior.parameters)
    everything = np.arange(len(fitting.runs))
    deviations = fitting.fit(everything)
    errors = _crossed(fitting, deviations)
    tail = (1 - COVERAGE) / 2
    # predicted / published lies between the quantiles: so does published / predicted, between their inverses
    low, high = np.exp(-np.quantile(errors, [1 - tail, tail]))
    values = fitting.values(deviations)
    changed = Calibration(prior.parameters, below=float(min(low, 1.0)), above=float(max(high, 1.0)))
    return changed.with_values(values)


def _crossed(fitting: Fitting, start: dict[str, float]) -> np.ndarray:
    """Errors of each half of the series under a fit to the other half, of grade A."""
    names = sorted({series_of(run) for run in fitting.runs})
    half = {name: i % 2 for i, name in enumerate(names)}
    side = np.array([half[series_of(run)] for run in fitting.runs])
    good = np.array([run.grade == "A" for run in fitting.runs])
    found = []
    for this in (0, 1):
        deviations = fitting.fit(np.flatnonzero(side != this), start, tries=6)
        found.append(fitting.errors(np.flatnonzero((side == this) & good), deviations))
    return np.concatenate(found)


def left_out(
    runs: Sequence[PublishedRun], by: str, calibration: Calibration, known: Sequence[PublishedRun] | None = None
) -> tuple[Row, ...]:
    """Every run predicted by a fit to all known runs but those of its own source (or framework).

    Args:
        known: the runs to fit to; the runs themselves by default.
    """
    key = BY[by]
    fitting = Fitting(runs if known is None else known, calibration.parameters)
    start = fitting.fit(np.arange(len(fitting.runs)))
    cases, why = cases_of(runs)
    rows: dict[int, Row] = {}
    keys = np.array([key(run) for run in fitting.runs])
    for name in dict.fromkeys(map(key, runs)):
        mine = {i: case for i, case in cases.items() if key(case.run) == name}
        if not mine:
            continue
        others = np.flatnonzero(keys != name)
        values = fitting.values(fitting.fit(others, start, tries=4))
        batch = Batch.of(list(mine.values()), [p.name for p in calibration.parameters])
        rows |= dict(zip(mine, rows_of(batch, batch.step(values), calibration), strict=True))
    return tuple(rows[i] if i in rows else unpredicted(run, why[i]) for i, run in enumerate(runs))

