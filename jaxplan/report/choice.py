"""Machine sizes beside each other, as data and as lines; schema `jaxplan.choice/1`. Nothing is computed here.

    schema      "jaxplan.choice/1"
    source      "estimated": the tier of the step times
    tokens, deadline_s, price_per_chip_hour, most: what was asked; null where it was not
    options     [{"mesh", "name", "plan", "chips", "spare_chips", "step_time_s": {"value", "low", "high"}, "goodput",
                "interval_s", "days": {"value", "low", "high"}, "chip_hours", "money", "on_front", "allowed"}], fewest
                chips first; `on_front`: none is both faster and cheaper; `allowed`: in time and in the budget
    cheapest, fastest  the mesh of the allowed option with the least cost, with the fewest days; null where none is
    refused     [{"name", "why"}]: sizes that no plan fits
    inputs      [{"name", "value", "unit", "source"}], those of the size that was asked for
    assumptions [text]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxplan.goodput.choice import Choice, Option
from jaxplan.report.columns import INDENT, paragraph
from jaxplan.report.finite import finite
from jaxplan.report.goodput import Input
from jaxplan.report.grid import Grid
from jaxplan.units import DAY_S, format_count, format_duration, format_seconds, significant

SCHEMA = "jaxplan.choice/1"


@dataclass(frozen=True)
class ChoiceReport:
    """A choice with what was asked and assumed; `refused` are (name, why) of sizes without a plan."""

    choice: Choice
    tokens: float
    price_per_chip_hour: float | None = None
    refused: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Input, ...] = ()
    assumptions: tuple[str, ...] = ()


def choice_json(report: ChoiceReport) -> dict[str, Any]:
    """Schema `jaxplan.choice/1`."""
    choice = report.choice
    front = choice.front
    return finite({
        "schema": SCHEMA,
        "source": "estimated",
        "tokens": report.tokens,
        "deadline_s": choice.deadline_s,
        "price_per_chip_hour": report.price_per_chip_hour,
        "most": choice.most,
        "options": [_option(option, option in front, choice.allowed(option)) for option in choice.options],
        "cheapest": choice.cheapest.mesh if choice.cheapest else None,
        "fastest": choice.fastest.mesh if choice.fastest else None,
        "refused": [{"name": name, "why": why} for name, why in report.refused],
        "inputs": [{"name": i.name, "value": i.value, "unit": i.unit, "source": i.source} for i in report.inputs],
        "assumptions": list(report.assumptions),
    })


def _option(option: Option, on_front: bool, allowed: bool) -> dict[str, Any]:
    return {
        "mesh": option.mesh,
        "name": option.name,
        "plan": option.plan,
        "chips": option.chips,
        "spare_chips": option.spare_chips,
        "step_time_s": {"value": option.step_s, "low": option.step_low_s, "high": option.step_high_s},
        "goodput": option.goodput,
        "interval_s": option.interval_s,
        "days": {"value": option.days, "low": option.low_s / DAY_S, "high": option.high_s / DAY_S},
        "chip_hours": option.chip_hours,
        "money": option.money,
        "on_front": on_front,
        "allowed": allowed,
    }


def choice_grid(report: ChoiceReport) -> Grid:
    """One row a size; `*` stands by those that no other beats in both days and cost."""
    choice = report.choice
    front = choice.front
    priced = report.price_per_chip_hour is not None
    body = []
    for option in choice.options:
        low, high = significant(option.low_s / DAY_S), significant(option.high_s / DAY_S)
        body.append((
            "*" if option in front else "",
            option.mesh,
            f"{option.chips:,}",
            format_seconds(option.step_s),
            f"{option.goodput:.1%}",
            f"{significant(option.days)} ({low} to {high})",
            format_count(option.money if option.money is not None else option.chip_hours),
            f"{choice.scaling(option):.0%}",
            "" if choice.allowed(option) else "too late" if _late(choice, option) else "too dear",
            option.plan,
        ))
    cost = "money" if priced else "chip-hours"
    head = ("", "--mesh", "chips", "step time", "goodput", "days", cost, "scaling", "", "best plan")
    return Grid("Machine sizes", head, tuple(body), right=(2, 3, 4, 5, 6, 7), optional=(9, 7, 3))


def _late(choice: Choice, option: Option) -> bool:
    return choice.deadline_s is not None and option.total_s > choice.deadline_s


def choice_lines(report: ChoiceReport, width: int) -> Iterator[str]:
    """What the table says, and what to do next."""
    choice = report.choice
    yield "* no other size is both faster and cheaper. Step times are estimates of each size's best plan."
    for name, why in report.refused:
        yield from paragraph(f"{name}: {why}", width)
    asked = []
    if choice.deadline_s is not None:
        asked.append(f"within {format_duration(choice.deadline_s)}")
    if choice.most is not None:
        asked.append(f"for at most {format_count(choice.most)}")
    if asked:
        yield from _asked(choice, " and ".join(asked))
    yield "\nAssumed"
    for text in report.assumptions:
        yield from paragraph(text, width, INDENT)
    best = choice.cheapest or (choice.front[0] if choice.front else None)
    if best is not None:
        yield f"\nProve a size's plans:  jaxplan search --mesh {_quoted(best.mesh)} ...; then  jaxplan goodput PLAN"


def _asked(choice: Choice, words: str) -> Iterator[str]:
    cheapest, fastest = choice.cheapest, choice.fastest
    if cheapest is None or fastest is None:
        yield f"No size does it {words}."
        return
    yield f"Cheapest {words}: {cheapest.mesh}, {significant(cheapest.days)} days."
    if fastest != cheapest:
        yield f"Fastest {words}: {fastest.mesh}, {significant(fastest.days)} days."


def _quoted(mesh: str) -> str:
    return f"'{mesh}'" if "(" in mesh else mesh
