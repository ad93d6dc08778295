"""Global batches that a machine can divide, and what another batch does to the learning rate. No JAX here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import BATCH_AXES
from jaxplan.plan.sharding import AXES
from jaxplan.search.dims import dim_sizes
from jaxplan.search.legal import mesh_reason
from jaxplan.search.meshes import meshes, searched_axes
from jaxplan.workload.shape import Workload
from jaxplan.workload.table import Table

LINEAR_RULE = "Goyal et al. 2017, arXiv:1706.02677, section 2.1"
SQUARE_ROOT_RULE = "Krizhevsky 2014, arXiv:1404.5997, section 5; for Adam Malladi et al. 2022, arXiv:2205.10287"


@dataclass(frozen=True)
class LearningRate:
    """What a learning rate is multiplied by when the batch goes from one size to another, by either rule.

    Attributes:
        ratio: of the batches, k.
    """

    ratio: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.ratio) or self.ratio <= 0:
            raise ValueError(f"ratio must be a positive number, got {self.ratio}")

    @property
    def linear(self) -> float:
        """k: "when the minibatch size is multiplied by k, multiply the learning rate by k" (Goyal et al. 2017, SGD)."""
        return self.ratio

    @property
    def square_root(self) -> float:
        """sqrt(k): keeps the variance of the update (Krizhevsky 2014).

        For Adam Malladi et al. 2022 derive it, and scale with it 1 - beta1 and 1 - beta2 by k, epsilon by 1 / sqrt(k).
        """
        return math.sqrt(self.ratio)


@dataclass(frozen=True)
class Divisible:
    """Batches near one that a machine cannot divide.

    Attributes:
        nearest: that any mesh divides; the lower of two at the same distance.
        above: those that rows of padding can fill up to, ascending: the next multiple of each divisor. The more parts
            a mesh cuts a batch into, the more padding, and the less it needs of other axes.
        whole: the nearest multiple of all devices, each of which then has rows of its own.
    """

    nearest: int
    above: tuple[int, ...]
    whole: int


def row_divisors(workload: Workload, table: Table, machine: Machine) -> tuple[int, ...]:
    """Into how many parts the meshes that are legal on a machine, but for the batch, cut a batch; ascending."""
    limits = dim_sizes(table)
    any_batch = replace(workload, batch=machine.devices)    # which every product of axes divides
    found = set()
    for sizes in meshes(machine.devices, searched_axes(workload, limits)):
        of = dict(zip(AXES, sizes, strict=True))
        if not mesh_reason(of, any_batch, limits):
            found.add(_rows_cut(of))
    return tuple(sorted(found))


def _rows_cut(of: Mapping[str, int]) -> int:
    return math.prod(of[axis] for axis in (*BATCH_AXES, "stage"))


def divides(workload: Workload, table: Table, machine: Machine) -> bool:
    """Whether any mesh of the machine divides the workload's batch."""
    limits = dim_sizes(table)
    found = meshes(machine.devices, searched_axes(workload, limits))
    return any(not mesh_reason(dict(zip(AXES, sizes, strict=True)), workload, limits) for sizes in found)


def divisible(batch: int, divisors: Iterable[int], devices: int) -> Divisible:
    """The batches near `batch` that one of the divisors divides.

    Raises:
        ValueError: there is no divisor.
    """
    parts = tuple(divisors)
    if not parts:
        raise ValueError("no mesh is legal, whatever the batch")
    below = [batch // n * n for n in parts if batch >= n]
    above = [-(-batch // n) * n for n in parts]
    return Divisible(
        nearest=min([*below, *above], key=lambda b: (abs(b - batch), b)),
        above=tuple(sorted(set(above))),
        whole=min(_around(batch, devices), key=lambda b: (abs(b - batch), b)),
    )


def _around(batch: int, n: int) -> tuple[int, ...]:
    below = batch // n * n
    return (below, below + n) if below else (n,)
