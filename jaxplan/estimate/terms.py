"""Costs in term form: a sum of coefficients times powers of the plan's sizes.

For fixed rules every cost of a plan is a polynomial in the sizes of the mesh axes, the microbatches, the loss chunks:
an operation's work falls with the size of each axis that shards it, a live activation with the microbatches, a
gathered weight rises with them. The terms are collected once (milliseconds); any number of plans is then one matrix
product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxplan.plan.sharding import AXES

#: What the terms are powers of: the sizes of the mesh axes, and
#: `microbatches`: sequential parts whose gradients are accumulated (1 where there are stages), `pipelined`: those that
#: follow each other through stages (1 where there are none), `loss_chunks`; `bubble`: time of a pipeline over the time
#: of its work, `ticks`: messages between stages (0 without stages), `in_flight`: microbatches of whose layers a stage
#: keeps the residuals; 1 or 0: `accumulating` (several microbatches are accumulated), `chunked` (several loss chunks),
#: `pipelining` (several stages), `ulysses` (attention exchanges heads for sequence, not a ring), `offloaded` (the
#: optimizer's state lies in the host's memory).
VARIABLES: tuple[str, ...] = (
    *AXES,
    *("microbatches", "pipelined", "loss_chunks", "bubble", "ticks", "in_flight"),
    *("accumulating", "chunked", "pipelining", "ulysses", "offloaded"),
)
_PLACE = {name: i for i, name in enumerate(VARIABLES)}
Exponents = tuple[int, ...]


def exponents(**powers: int) -> Exponents:
    """The exponents of one monomial, by variable: `exponents(fsdp=-1, microbatches=1)`."""
    found = [0] * len(VARIABLES)
    for name, power in powers.items():
        if name not in _PLACE:
            raise ValueError(f"unknown variable {name!r}; known are {VARIABLES}")
        found[_PLACE[name]] = power
    return tuple(found)


def rows(
    sizes: ArrayLike,
    microbatches: ArrayLike,
    loss_chunks: ArrayLike,
    pipeline: Pipeline | None = None,
    ulysses: ArrayLike = 0,
    offloaded: ArrayLike = 0,
) -> Float[np.ndarray, "plans variables"]:
    """The variables of plans, one row a plan.

    Args:
        sizes: [plans, axes], the sizes of `AXES`.
        microbatches, loss_chunks: [plans].
        pipeline: what plans with stages add; None where no plan has any.
        ulysses, offloaded: [plans], 1 or 0.
    """
    sizes = np.atleast_2d(np.asarray(sizes))
    micro, chunks = np.atleast_1d(np.asarray(microbatches)), np.atleast_1d(np.asarray(loss_chunks))
    staged = sizes[:, AXES.index("stage")] > 1
    if pipeline is None:
        if staged.any():
            raise ValueError("plans with stages need a pipeline's figures, got none")
        pipeline = Pipeline.none(len(sizes))
    whole = np.where(staged, 1, micro)
    figures = [np.where(staged, pipeline.bubble, 1), np.where(staged, pipeline.ticks, 0)]
    figures.append(np.where(staged, pipeline.in_flight, 1))
    flags = [whole > 1, chunks > 1, staged, *(np.broadcast_to(flag, len(sizes)) for flag in (ulysses, offloaded))]
    return np.column_stack([sizes, whole, np.where(staged, micro, 1), chunks, *figures, *flags]).astype(float)


@dataclass(frozen=True)
class Pipeline:
    """Of plans with stages: the variables `bubble`, `ticks` and `in_flight`, each [plans]."""

    bubble: np.ndarray
    ticks: np.ndarray
    in_flight: np.ndarray

    @classmethod
    def none(cls, plans: int) -> Pipeline:
        return cls(np.ones(plans), np.zeros(plans), np.ones(plans))


@dataclass(frozen=True)
class Terms:
    """One cost: `sum over terms of coefficient * prod(size ** exponent)`. Terms add, and scale by numbers."""

    coefficients: Mapping[Exponents, float] = field(default_factory=dict)

    @classmethod
    def one(cls, coefficient: float, **powers: int) -> Terms:
        return cls({exponents(**powers): float(coefficient)})

    def __add__(self, other: Terms) -> Terms:
        total = dict(self.coefficients)
        for powers, coefficient in other.coefficients.items():
            total[powers] = total.get(powers, 0.0) + coefficient
        return Terms(total)

    def __mul__(self, factor: float) -> Terms:
        return Terms({powers: coefficient * factor for powers, coefficient in self.coefficients.items()})

    def times(self, **powers: int) -> Terms:
        """Every term multiplied by one monomial."""
        more = exponents(**powers)
        return Terms({tuple(a + b for a, b in zip(e, more, strict=True)): c for e, c in self.coefficients.items()})

    def product(self, other: Terms) -> Terms:
        """The cost of doing something as often as another cost says: every term times every other."""
        return total([self.times(**dict(zip(VARIABLES, e, strict=True))) * c for e, c in other.coefficients.items()])

    def at(self, sizes: Float[np.ndarray, "plans variables"]) -> Float[np.ndarray, " plans"]:
        """The cost of each plan."""
        return TermMatrix.of([self]).evaluate(sizes)[:, 0]


def total(parts: Sequence[Terms]) -> Terms:
    """The sum of several costs."""
    out = Terms()
    for part in parts:
        out = out + part
    return out


def unless(flag: str, cost: Terms) -> Terms:
    """The cost of plans that do not have the flag (a variable that is 1 or 0); none of those that do."""
    return cost + cost.times(**{flag: 1}) * -1.0


@dataclass(frozen=True)
class TermMatrix:
    """Several costs over one set of monomials, ready for many plans."""

    powers: np.ndarray          # int [monomials, variables]
    coefficients: np.ndarray    # float [monomials, costs]

    @classmethod
    def of(cls, costs: Sequence[Terms]) -> TermMatrix:
        monomials = sorted({powers for cost in costs for powers in cost.coefficients})
        row = {powers: i for i, powers in enumerate(monomials)}
        matrix = np.zeros((len(monomials), len(costs)))
        for column, cost in enumerate(costs):
            for powers, coefficient in cost.coefficients.items():
                matrix[row[powers], column] = coefficient
        return cls(np.array(monomials, dtype=int).reshape(len(monomials), len(VARIABLES)), matrix)

    def evaluate(self, sizes: Float[np.ndarray, "plans variables"]) -> Float[np.ndarray, "plans costs"]:
        """All costs of all plans: one power table per variable, then one matrix product."""
        monomials = np.ones((len(self.powers), len(sizes)))
        for variable in range(len(VARIABLES)):
            column = self.powers[:, variable]
            for power in np.unique(column[column != 0]):
                monomials[column == power] *= sizes[:, variable] ** float(power) if power > 0 else (
                    1.0 / sizes[:, variable] ** float(-power)
                )
        return monomials.T @ self.coefficients
