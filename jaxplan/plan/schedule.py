"""Pipeline schedules by name: what each is, and when a plan may use it.

Symbols: p stages (devices along the stage axis), m microbatches of one step, v repeats (chunks of layers that one
device holds: its layers are v separate groups, p groups apart), L layers that the pipeline divides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """In which order the stages of a pipeline work on the microbatches.

    Attributes:
        executable: whether our own JAX program runs it; the others are priced for export.
        needs_repeats: whether a device holds several chunks of layers (v > 1).
        parameter_copies: how many stages' parameters a device holds, in stages.
        why: one line for people.
        source: the paper that defines it.
    """

    name: str
    executable: bool
    needs_repeats: bool
    why: str
    source: str
    parameter_copies: int = 1

    def __post_init__(self) -> None:
        if self.parameter_copies not in (1, 2):
            raise ValueError(f"parameter_copies must be 1 or 2 (both directions), got {self.parameter_copies}")


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "gpipe", True, False,
            "all forwards, then all backwards: simplest, holds every microbatch",
            "Huang et al. 2019, arXiv:1811.06965",
        ),
        Schedule(
            "circular", True, True,
            "gpipe over several chunks a device: a bubble v times smaller, v times the sends",
            "Lamy-Poirier 2022, arXiv:2211.05953 (looped, breadth-first)",
        ),
        Schedule(
            "1f1b", False, False,
            "a backward after each forward: gpipe's bubble, at most p microbatches held",
            "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
        ),
        Schedule(
            "interleaved", False, True,
            "1f1b over several chunks a device: a bubble v times smaller, slightly more held",
            "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
        ),
        Schedule(
            "zero-bubble", False, False,
            "ZB-H1: 1f1b whose weight gradients fill the bubble, at 1f1b's memory",
            "Qi et al. 2023, arXiv:2401.10241, section 2.1",
        ),
        Schedule(
            "dualpipe", False, False,
            "microbatches from both ends, one's forward hidden behind another's backward: twice the parameters",
            "DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1",
            parameter_copies=2,
        ),
    )
}


def schedule(name: str) -> Schedule:
    """The schedule of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")
    return SCHEDULES[name]


@dataclass(frozen=True)
class _Rule:
    """What some schedules ask of (stages p, microbatches m, repeats v, layers)."""

    broken: str
    asked_of: Callable[[Schedule], bool]
    holds: Callable[[int, int, int, int], bool]


def _only(name: str) -> Callable[[Schedule], bool]:
    return lambda schedule: schedule.name == name


_RULES = (
    # one stage is plain gradient accumulation; it is counted once, as gpipe
    _Rule("only gpipe runs on a single stage", lambda s: s.name != "gpipe", lambda p, m, v, layers: p > 1),
    _Rule("the schedule takes no repeats", lambda s: not s.needs_repeats, lambda p, m, v, layers: v == 1),
    _Rule("the schedule needs repeats", lambda s: s.needs_repeats, lambda p, m, v, layers: v > 1),
    _Rule("stages do not divide the layers", lambda s: True, lambda p, m, v, layers: layers % p == 0),
    _Rule(
        "stages times repeats do not divide the layers", lambda s: True, lambda p, m, v, layers: layers % (p * v) == 0
    ),
    # a microbatch comes round to the first stage p ticks later: with fewer in the ring it would wait for itself
    _Rule("circular needs as many microbatches as stages", _only("circular"), lambda p, m, v, layers: m >= p),
    _Rule(
        "interleaved needs microbatches in multiples of the stages",
        _only("interleaved"),
        lambda p, m, v, layers: m % p == 0,
    ),
    _Rule("zero-bubble needs as many microbatches as stages", _only("zero-bubble"), lambda p, m, v, layers: m >= p),
    # the three conditions of DeepSeek's published implementation (github.com/deepseek-ai/DualPipe, DualPipe.step)
    _Rule("dualpipe needs an even number of stages", _only("dualpipe"), lambda p, m, v, layers: p % 2 == 0),
    _Rule("dualpipe needs an even number of microbatches", _only("dualpipe"), lambda p, m, v, layers: m % 2 == 0),
    _Rule(
        "dualpipe needs twice as many microbatches as stages", _only("dualpipe"), lambda p, m, v, layers: m >= 2 * p
    ),
)

#: Every sentence that `reason` can give, in the order in which the rules are asked.
REASONS = tuple(rule.broken for rule in _RULES)


def reason(name: str, stages: int, microbatches: int, repeats: int, layers: int) -> str:
    """Why a plan cannot use a schedule; empty if it can. The sentences hold no figures: they serve as counter keys.

    Args:
        stages, microbatches, repeats: p, m and v of the plan.
        layers: the layers that the pipeline divides, without embedding and loss.

    Raises:
        ValueError: there is no such schedule, or a count is below one.
    """
    asked = schedule(name)
    counts = (stages, microbatches, repeats, layers)
    if min(counts) < 1:
        raise ValueError(f"stages, microbatches, repeats and layers must be at least 1, got {counts}")
    broken = (rule.broken for rule in _RULES if rule.asked_of(asked) and not rule.holds(*counts))
    return next(broken, "")


def layer_order(layers: int, stages: int, repeats: int = 1) -> tuple[int, ...]:
    """The layer of the model at each stored index: stored (s R + r) l + k is layer (r p + s) l + k.

    Weights of a model in its own order are put into a plan's by `weights[numpy.array(order)]`; without repeats the
    two orders are the same.

    Raises:
        ValueError: stages x repeats do not divide the layers.
    """
    if layers % (stages * repeats):
        raise ValueError(f"expected layers in multiples of stages x repeats = {stages * repeats}, got {layers}")
    chunk = layers // (stages * repeats)
    return tuple(
        (r * stages + s) * chunk + k for s in range(stages) for r in range(repeats) for k in range(chunk)
    )
