"""The useful share of a long run in closed form, and where the rest goes.

A cycle is what lies between two failures. After the restart R, save i of the cycle is durable at i (tau + C) + T_save;
what follows the last durable save is lost. With failures that have no memory, the number of durable saves has the mean

    E[N] = sum over i >= 1 of P(Y >= R + T_save + i (tau + C)) = exp(-(R + T_save) / M) / (exp((tau + C) / M) - 1)

and a cycle lasts M + D. For T_save = 0 this is Bougeret et al. 2011 (SC'11), and, with D = 0, Daly 2006 (FGCS
22(3)): E[T] = (M + D) exp(R / M) (exp((tau + C) / M) - 1) for each tau of work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jaxplan.goodput.setting import Setting


def saves_in_cycle(setting: Setting, interval_s: ArrayLike) -> np.ndarray:
    """E[N], the mean number of saves of a cycle that become durable. Written without exponentials that overflow."""
    period = (np.asarray(interval_s, dtype=float) + setting.block_s) / setting.mtbf_s
    before = (setting.restart_s + setting.write_s) / setting.mtbf_s
    return np.exp(-before - period) / -np.expm1(-period)


def goodput(setting: Setting, interval_s: ArrayLike) -> np.ndarray:
    """Useful share of the time in the long run, tau E[N] / (M + D), for each interval.

    Exact for exponential failures and an endless run with tau >= T_save. The first start of a run is not in it.

    Args:
        interval_s: tau, seconds of work between two saves, above 0.
    """
    interval = np.asarray(interval_s, dtype=float)
    if not np.all(interval > 0):
        raise ValueError(f"interval_s must be positive, got {interval.min()}")
    return interval * saves_in_cycle(setting, interval) / (setting.mtbf_s + setting.wait_s)


def first_order_waste(setting: Setting, interval_s: ArrayLike) -> np.ndarray:
    """Lost seconds for each second of work, to first order: C / tau + (tau / 2 + T_save + R + D) / M.

    What Young 1974 makes small, with the time until a save is durable and the restart; expected ETTR of Kokolis et al.
    2024 (arXiv:2410.21680). Holds where everything is much shorter than M, at a waste of some percent.
    """
    interval = np.asarray(interval_s, dtype=float)
    lost = interval / 2 + setting.write_s + setting.restart_s + setting.wait_s
    return setting.block_s / interval + lost / setting.mtbf_s


def ettr(setting: Setting, interval_s: ArrayLike) -> np.ndarray:
    """Useful share to first order, 1 - waste, as the literature writes it; not below 0."""
    return np.maximum(0.0, 1 - first_order_waste(setting, interval_s))
