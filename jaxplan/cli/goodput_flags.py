"""What the user typed for `goodput`, and how its figures are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jaxplan.errors import InputError

T = TypeVar("T")

#: The flag of a figure that only the formulas refuse.
FLAG_OF = {
    "interval_s": "--interval",
    "repair_s": "--repair",
    "tokens": "--tokens",
    "tokens_per_step": "--tokens-per-step",
    "local_restart_s": "--local restore",
}


@dataclass(frozen=True)
class Flags:
    """What the user typed, by flag; None was not given."""

    nodes: int | None = None
    chips_per_node: int | None = None
    state_bytes: str | None = None
    step_time: str | None = None
    tokens_per_step: str | None = None
    storage: str | None = None
    rate: float | None = None
    fleet: str | None = None
    restart: str | None = None
    checkpoint: str = "async"
    block: str | None = None
    write: str | None = None
    restore: str | None = None
    interval: str | None = None
    local: str | None = None
    tokens: str | None = None
    price: float | None = None
    spares: int | None = None
    spares_probability: float | None = None
    repair: str | None = None
    weibull: float | None = None
    seed: int = 0


def parsed(flag: str, text: str | None, parser: Callable[[str], float]) -> float | None:
    """The figure of a flag.

    Raises:
        InputError: it cannot be read.
    """
    if text is None:
        return None
    try:
        return parser(text)
    except ValueError as error:
        raise InputError(f"{flag} {text!r}", str(error)) from error


def pairs(
    flag: str, text: str | None, names: tuple[str, ...], parser: Callable[[str], float], example: str
) -> Mapping[str, float]:
    """`name=figure` joined by commas; hyphens stand for spaces."""
    found: dict[str, float] = {}
    for part in text.split(",") if text is not None else []:
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", " ")
        if not equals or name not in names:
            raise InputError(f"{flag} {text!r}", f"{', '.join(names)} with =, such as {example}")
        if name in found:
            raise InputError(f"{flag} names {name} twice", "each name once")
        found[name] = parsed(f"{flag} {name}", value.strip(), parser) or 0.0
    return found


def checked(make: Callable[[], T]) -> T:
    """What `make` makes; what it refuses is a user's figure, called by its flag."""
    try:
        return make()
    except ValueError as error:
        name, space, rest = str(error).partition(" ")
        raise InputError(f"{FLAG_OF.get(name, name)}{space}{rest}") from error
