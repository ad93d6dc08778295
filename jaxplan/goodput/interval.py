"""How much work to do between two saves: three answers of the literature, each with where it holds."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import lambertw

from jaxplan.goodput.checks import not_negative, positive

NEXT_TO_NOTHING = 1e-7      # of C / M: below it W0's argument rounds towards its branch point, and Daly is as exact


def young_s(block_s: float, mtbf_s: float) -> float:
    """Young's first-order optimum, tau = sqrt(2 C M).

    Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9). Holds for C << M: it is
    too long by about C, and beyond C = M / 2 longer than M itself.
    """
    _check(block_s, mtbf_s)
    return math.sqrt(2 * block_s * mtbf_s)


def daly_s(block_s: float, mtbf_s: float) -> float:
    """Daly's higher-order optimum: tau = sqrt(2 C M) [1 + sqrt(C / 2M) / 3 + (C / 2M) / 9] - C for C < 2M, else M.

    Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), equation 37.
    """
    _check(block_s, mtbf_s)
    if block_s >= 2 * mtbf_s:
        return mtbf_s
    half = block_s / (2 * mtbf_s)
    return young_s(block_s, mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - block_s


def exact_s(block_s: float, mtbf_s: float) -> float:
    """The optimum of the expected time itself: tau = M (1 + W0(-exp(-1 - C / M))), W0 Lambert's function.

    Where `expected.goodput` is stationary: (1 - tau / M) exp((tau + C) / M) = 1, whatever R, D and T_save are. Bougeret
    et al. 2011, "Checkpointing strategies for parallel jobs" (SC'11), for runs of many intervals.
    Holds for exponential failures.
    """
    _check(block_s, mtbf_s)
    if block_s < NEXT_TO_NOTHING * mtbf_s:
        return daly_s(block_s, mtbf_s)
    return mtbf_s * (1 + float(np.real(lambertw(-math.exp(-1 - block_s / mtbf_s)))))


def bounded_s(interval_s: float, floor_s: float) -> float:
    """An interval that can be kept: no save begins before the last one is durable, none more often than a step.

    Goodput falls to both sides of its only maximum, so that where the maximum lies below the floor the floor is best.
    """
    not_negative(floor_s=floor_s)
    return max(interval_s, floor_s)


def _check(block_s: float, mtbf_s: float) -> None:
    not_negative(block_s=block_s)
    positive(mtbf_s=mtbf_s)
