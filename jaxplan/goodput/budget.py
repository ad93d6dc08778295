"""Days and money until a budget of tokens is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxplan.goodput.checks import not_negative, positive
from jaxplan.units import DAY_S, HOUR_S


@dataclass(frozen=True)
class Work:
    """What is to be done.

    Attributes:
        tokens: to train on.
        tokens_per_step, step_s: of one optimizer step.
    """

    tokens: float
    tokens_per_step: float
    step_s: float

    def __post_init__(self) -> None:
        positive(tokens=self.tokens, tokens_per_step=self.tokens_per_step, step_s=self.step_s)

    @property
    def steps(self) -> int:
        return math.ceil(self.tokens / self.tokens_per_step)

    @property
    def useful_s(self) -> float:
        """Seconds in which nothing but steps would run."""
        return self.steps * self.step_s


@dataclass(frozen=True)
class Budget:
    """What the work takes.

    Attributes:
        first_start_s: the start of the run, which no failure caused.
        chips, spare_chips: that are paid for; spares wait, and cost the same.
        price_per_chip_hour: None where nobody gave one.
    """

    work: Work
    goodput: float
    first_start_s: float
    chips: int
    spare_chips: int = 0
    price_per_chip_hour: float | None = None

    def __post_init__(self) -> None:
        positive(goodput=self.goodput, chips=self.chips)
        not_negative(first_start_s=self.first_start_s, spare_chips=self.spare_chips)
        if self.goodput > 1:
            raise ValueError(f"goodput must be at most 1, got {self.goodput}")
        if self.price_per_chip_hour is not None:
            not_negative(price_per_chip_hour=self.price_per_chip_hour)

    @property
    def total_s(self) -> float:
        return self.work.useful_s / self.goodput + self.first_start_s

    @property
    def days(self) -> float:
        return self.total_s / DAY_S

    @property
    def chip_hours(self) -> float:
        return (self.chips + self.spare_chips) * self.total_s / HOUR_S

    @property
    def money(self) -> float | None:
        """In the currency of the price."""
        return None if self.price_per_chip_hour is None else self.chip_hours * self.price_per_chip_hour
