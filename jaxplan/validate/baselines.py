"""What one can say without a model of the machine: the naive predictions that ours are compared with. No JAX here.

Both divide the model's FLOPs by the chip's bfloat16 peak and by a fraction that is fitted to the runs of the fitting
set: the best that a spreadsheet with one efficiency can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from jaxplan.validate.row import Row

CONSTANT_MFU = "constant MFU per chip"
ROOFLINE = "roofline without communication"
NO_FLOPS = "its model FLOPs or its chip's peak are not known"
NOT_FITTED = "no run of the fitting set has a published step time"


def ideal_s(row: Row) -> float | None:
    """Seconds of the model's FLOPs at the chip's peak."""
    if row.model_flops is None or not row.peak_flops_per_s:
        return None
    return row.model_flops / row.peak_flops_per_s


def mfu(row: Row) -> float | None:
    """Published model FLOPs utilization: the ideal over the published step time (Chowdhery et al. 2022, appendix B)."""
    ideal = ideal_s(row)
    return None if ideal is None or row.published_step_time_s is None else ideal / row.published_step_time_s


def baselines(rows: Sequence[Row], fitted: Sequence[Row]) -> dict[str, tuple[Row, ...]]:
    """Both baselines on the rows that we predict.

    Args:
        fitted: runs of which those of the part `fit` fit the fractions.
    """
    return {CONSTANT_MFU: constant_mfu(rows, fitted), ROOFLINE: roofline(rows, fitted)}


def constant_mfu(rows: Sequence[Row], fitted: Sequence[Row]) -> tuple[Row, ...]:
    """Step time = ideal / median MFU of the chip's fitted runs, or of all of them for a chip that has none."""
    known = [(row.chip, found) for row in fitted if row.part == "fit" and (found := mfu(row)) is not None]
    overall = _median([found for _, found in known])
    by_chip = {chip: _median([found for other, found in known if other == chip]) for chip, _ in known}
    return _scaled(rows, CONSTANT_MFU, lambda row: by_chip.get(row.chip, overall))


def roofline(rows: Sequence[Row], fitted: Sequence[Row]) -> tuple[Row, ...]:
    """Step time = ideal / one fraction for all chips: the median of the fitted runs."""
    overall = _median([found for row in fitted if row.part == "fit" and (found := mfu(row)) is not None])
    return _scaled(rows, ROOFLINE, lambda _: overall)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _scaled(rows: Sequence[Row], name: str, fraction_of: Callable[[Row], float | None]) -> tuple[Row, ...]:
    return tuple(_predicted(row, name, fraction_of(row)) for row in rows if row.predicted)


def _predicted(row: Row, name: str, fraction: float | None) -> Row:
    """The row with the step time of a baseline, which has no bounds and says nothing of memory."""
    ideal = ideal_s(row)
    blank = replace(row, predicted_memory_bytes=None, fits=None)
    if ideal is None or not fraction:
        reason = NO_FLOPS if ideal is None else NOT_FITTED
        nothing = {"predicted_step_time_s": None, "low_s": None, "high_s": None}
        return replace(blank, **nothing, ledger_s={}, not_predicted=reason)
    value = ideal / fraction
    return replace(blank, predicted_step_time_s=value, low_s=value, high_s=value, ledger_s={name: value})
