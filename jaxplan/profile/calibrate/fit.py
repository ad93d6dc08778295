"""From timings to prices: sums of work times price, never negative, so that more work never takes less time.

    seconds = sum over kinds of work of  amount x price,   prices >= 0

Non-negative least squares (Lawson and Hanson 1974, "Solving Least Squares Problems", chapter 23) of relative errors:
every timing weighs the same, however long it is. Timings that stay far from the fit weigh less in the next of a few
passes (iteratively reweighted least squares with Huber's weights, Huber 1964, doi:10.1214/aoms/1177703732), so that one
disturbed timing does not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

PASSES = 8
BEND = 0.15         # relative error from which on a timing weighs less (chosen: twice what repeats are apart)


@dataclass(frozen=True)
class Fit:
    """Prices and how far timings are from them.

    Attributes:
        prices: seconds of one unit, by kind of work; kinds that no timing has are left out.
        errors: of each timing, predicted over measured - 1.
    """

    prices: Mapping[str, float]
    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors))) if self.errors else 0.0

    @property
    def worst(self) -> float:
        return float(np.max(np.abs(self.errors))) if self.errors else 0.0


def fit(works: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> Fit:
    """The prices of the kinds of work that explain the timings best.

    Args:
        works: of each timing, kind of work to amount, not negative.
        seconds: of each timing, positive.

    Raises:
        ValueError: no timings, not as many works as timings, or a timing that is not positive.
    """
    taken = np.asarray(seconds, dtype=float)
    if not len(works) or len(works) != len(taken) or not np.all(taken > 0):
        raise ValueError(f"expected a positive timing for each of some works, got {len(works)} works, {taken}")
    kinds = sorted({kind for work in works for kind, amount in work.items() if amount > 0})
    amounts = np.array([[work.get(kind, 0.0) for kind in kinds] for work in works]) / taken[:, None]
    scale = np.maximum(amounts.max(axis=0), np.finfo(float).tiny)
    weights, found, errors = np.ones(len(taken)), np.zeros(len(kinds)), np.zeros(len(taken))
    for _ in range(PASSES):
        found, _ = nnls(weights[:, None] * amounts / scale, weights)
        errors = amounts / scale @ found - 1
        weights = np.sqrt(np.minimum(1.0, BEND / np.maximum(np.abs(errors), 1e-12)))
    prices = dict(zip(kinds, (float(p) for p in found / scale), strict=True))
    return Fit(prices, tuple(map(float, errors)))
