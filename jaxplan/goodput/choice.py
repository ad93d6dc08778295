"""How many chips: each machine size by days, money and goodput, and those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.goodput.assessment import Assessment
from jaxplan.goodput.checks import positive
from jaxplan.units import DAY_S


@dataclass(frozen=True)
class Option:
    """One machine size with its best plan.

    Attributes:
        mesh: as `--mesh` takes it; name: the machine's.
        plan: the plan's decisions in words.
        chips: of the job; spare_chips wait and are paid for, too.
        step_s: of the plan, with its bounds.
        total_s: until the budget of tokens is spent; its bounds are those of the step time, at the same goodput.
        money: None where no price was given: chip-hours are compared then.
    """

    mesh: str
    name: str
    plan: str
    chips: int
    spare_chips: int
    step_s: float
    step_low_s: float
    step_high_s: float
    goodput: float
    interval_s: float
    total_s: float
    chip_hours: float
    money: float | None

    def __post_init__(self) -> None:
        positive(chips=self.chips, step_s=self.step_s, total_s=self.total_s, chip_hours=self.chip_hours)
        if not self.step_low_s <= self.step_s <= self.step_high_s:
            raise ValueError(f"step_s must lie between {self.step_low_s} and {self.step_high_s}, got {self.step_s}")

    @property
    def low_s(self) -> float:
        return self.total_s * self.step_low_s / self.step_s

    @property
    def high_s(self) -> float:
        return self.total_s * self.step_high_s / self.step_s

    @property
    def days(self) -> float:
        return self.total_s / DAY_S

    @property
    def cost(self) -> float:
        """What is made small beside the days."""
        return self.chip_hours if self.money is None else self.money


@dataclass(frozen=True)
class Choice:
    """Sizes to choose from, fewest chips first.

    Attributes:
        deadline_s: until the tokens must be spent; None: whenever.
        most: money that may be spent; None: as much as it takes.
    """

    options: tuple[Option, ...]
    deadline_s: float | None = None
    most: float | None = None

    @property
    def front(self) -> tuple[Option, ...]:
        """Those that no other beats in days and cost (Pareto), fastest first."""
        return pareto(self.options)

    def allowed(self, option: Option) -> bool:
        """Whether it meets the deadline and the budget."""
        in_time = self.deadline_s is None or option.total_s <= self.deadline_s
        return in_time and (self.most is None or option.money is None or option.money <= self.most)

    @property
    def cheapest(self) -> Option | None:
        """The least cost among those that are allowed; None where none is."""
        return min((option for option in self.options if self.allowed(option)), key=lambda o: o.cost, default=None)

    @property
    def fastest(self) -> Option | None:
        """The fewest days among those that are allowed."""
        return min((option for option in self.options if self.allowed(option)), key=lambda o: o.total_s, default=None)

    def scaling(self, option: Option) -> float:
        """Tokens per chip and second against the smallest machine's, spares and lost time included."""
        least = min(self.options, key=lambda o: o.chips)
        return least.chip_hours / option.chip_hours


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options that no other is at least as good as in both days and cost, and better in one; fastest first."""
    found: list[Option] = []
    for option in sorted(options, key=lambda o: (o.total_s, o.cost)):
        if not found or option.cost < found[-1].cost:
            found.append(option)
    return tuple(found)


def option_of(
    mesh: str, name: str, plan: str, assessment: Assessment, step_low_s: float, step_high_s: float
) -> Option:
    """The row of a size.

    Raises:
        ValueError: there is no budget of tokens.
    """
    budget = assessment.budget
    if budget is None:
        raise ValueError("a choice of sizes needs a budget of tokens")
    return Option(
        mesh=mesh,
        name=name,
        plan=plan,
        chips=budget.chips,
        spare_chips=budget.spare_chips,
        step_s=budget.work.step_s,
        step_low_s=step_low_s,
        step_high_s=step_high_s,
        goodput=assessment.goodput,
        interval_s=assessment.interval_s,
        total_s=budget.total_s,
        chip_hours=budget.chip_hours,
        money=budget.money,
    )
