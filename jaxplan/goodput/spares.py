"""How many nodes wait as spares, so that a failure rarely has to wait for a repair."""

from __future__ import annotations

from scipy.stats import poisson

from jaxplan.goodput.checks import positive, share
from jaxplan.units import DAY_S


def in_repair(failures_per_day: float, repair_s: float) -> float:
    """Mean number of nodes in repair, a = failures per second x repair time.

    Palm's theorem (M/G/infinity): where failures are Poisson, the number in repair is Poisson with this mean, whatever
    the distribution of repair times. Assumes that every failure takes one node out, and that repairs do not queue.
    """
    positive(failures_per_day=failures_per_day, repair_s=repair_s)
    return failures_per_day * repair_s / DAY_S


def probability(spares: int, mean_in_repair: float) -> float:
    """Share of the time in which no more nodes are in repair than there are spares: P(Poisson(a) <= spares)."""
    return float(poisson.cdf(spares, mean_in_repair))


def needed(wanted: float, mean_in_repair: float) -> int:
    """The fewest spares that are enough with the wanted probability."""
    share(spares_probability=wanted)
    return int(poisson.ppf(wanted, mean_in_repair))


def wait_s(spares: int, mean_in_repair: float, repair_s: float) -> float:
    """Mean wait of a failure for a node to come back: P(Poisson(a) >= spares) x repair / (spares + 1).

    The failed node joins those in repair; where they were as many as the spares or more, the job waits for the first
    of spares + 1 to return. Holds for exponential repair times and few nodes in repair beyond the spares; with no
    spares it is the repair itself.
    """
    return float(poisson.sf(spares - 1, mean_in_repair)) * repair_s / (spares + 1)
