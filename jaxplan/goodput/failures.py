"""How often a job fails: nodes in series, each at the same rate; exponential or Weibull times between failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jaxplan.goodput.checks import positive
from jaxplan.units import DAY_S


@dataclass(frozen=True)
class Failures:
    """Failures of a job that stops when one of its nodes does.

    Attributes:
        per_1000_node_days: failures that stop the job, per 1,000 nodes and day.
        nodes: of the job (hosts; spares that wait are not in it).
    """

    per_1000_node_days: float
    nodes: int

    def __post_init__(self) -> None:
        positive(per_1000_node_days=self.per_1000_node_days, nodes=self.nodes)

    @property
    def per_day(self) -> float:
        return self.per_1000_node_days * self.nodes / 1000

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job: independent nodes in series add their rates, M = 1 / (n r).

        Kokolis et al. 2024 (arXiv:2410.21680) find this in jobs of more than about 32 GPUs.
        """
        return DAY_S / self.per_day


def rate_of(failures: float, days: float, nodes: int) -> float:
    """Failures per 1,000 node-days, of a run that counted its own."""
    positive(failures=failures, days=days, nodes=nodes)
    return 1000 * failures / (days * nodes)


@dataclass(frozen=True)
class Law:
    """The distribution of times between failures, given their mean M.

    Weibull with shape k: S(t) = exp(-(t / scale)^k), scale = M / Gamma(1 + 1/k). k = 1 is exponential (no memory);
    k < 1: failures come in bursts, as in Schroeder and Gibson 2006 (DSN).
    """

    shape: float = 1.0

    def __post_init__(self) -> None:
        positive(shape=self.shape)

    @property
    def name(self) -> str:
        return "exponential" if self.shape == 1 else "Weibull"

    def draw(self, generator: np.random.Generator, mean_s: float, size: tuple[int, ...]) -> np.ndarray:
        """Times between failures in seconds."""
        if self.shape == 1:
            return generator.exponential(mean_s, size)
        return generator.weibull(self.shape, size) * (mean_s / math.gamma(1 + 1 / self.shape))
