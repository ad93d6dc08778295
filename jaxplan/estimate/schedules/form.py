"""What a schedule's file says about it: two closed forms, and the order that proves them.

Symbols, in every file here: p stages, m microbatches, v repeats (chunks a device), s a device along the stage axis.
F, B and W are the seconds of one microbatch on one stage (all chunks of a device together): the forward pass, the
backward pass to the inputs, the gradient of the weights. Where a schedule does not split the backward pass, its
backward task takes B + W. Activations are counted in microbatches of one stage, so a chunk's is 1/v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Plans = Float[np.ndarray, "*plans"]


class Task(NamedTuple):
    """Work of one device on one chunk and one microbatch; `kind` is F, B or W."""

    kind: str
    microbatch: int
    chunk: int


#: What a device does at one time: one task, or a forward and a backward whose computation and communication overlap.
Cell = tuple[Task, ...]
#: A task and the device that does it.
Place = tuple[int, Task]
#: The tasks that have to end before a device may start one.
Needs = Callable[[int, Task], Sequence[Place]]


class Times(NamedTuple):
    """Seconds of one microbatch on one stage, of plans whose stages are equal.

    Attributes:
        forward, backward, weight: F, B, W.
        overlapped: F&B, a forward and a whole backward pass that overlap; F + B + W if they only take turns.
    """

    forward: Plans
    backward: Plans
    weight: Plans
    overlapped: Plans

    @property
    def work(self) -> Plans:
        """F + B + W: one microbatch through one stage and back."""
        return self.forward + self.backward + self.weight


def all_work(p: Plans, m: Plans, v: Plans, times: Times) -> Plans:
    """The seconds that a device works when nothing overlaps: m (F + B + W)."""
    return m * times.work


def fill_and_drain(p: Plans, m: Plans, v: Plans, times: Times) -> Plans:
    """The seconds that a device waits while the pipeline fills and drains: (p - 1)(F + B + W) / v.

    GPipe: Huang et al. 2019, arXiv:1811.06965, section 2.3 ((K - 1) / (M + K - 1) of the step, K stages). 1F1B, and
    with v chunks interleaved: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2 ((p - 1) / m and
    (p - 1) / (v m) of the ideal time). Circular: Lamy-Poirier 2022, arXiv:2211.05953. Equal stages, free sends.
    """
    return (p - 1) * times.work / v


@dataclass(frozen=True)
class Form:
    """A schedule.

    Attributes:
        idle: (p, m, v, times) -> seconds in a step that the most idle device waits, for equal stages and free sends.
        in_flight: (s, p, m, v) -> the most activations that device s holds at once.
        orders: (p, m, v) -> for each device the cells that it works through, in order.
        needs: (p, m, v) -> what each task waits for on other devices.
        busy: (p, m, v, times) -> seconds in a step that this device works.
    """

    idle: Callable[[Plans, Plans, Plans, Times], Plans]
    in_flight: Callable[[Plans, Plans, Plans, Plans], Plans]
    orders: Callable[[int, int, int], list[list[Cell]]]
    needs: Callable[[int, int, int], Needs]
    busy: Callable[[Plans, Plans, Plans, Times], Plans] = all_work


def along(routes: Iterable[Sequence[tuple[int, int]]]) -> Needs:
    """The needs of microbatches that travel along routes of (device, chunk), forwards and then back.

    Every (device, chunk) lies on one route. A forward needs the one before it on its route, a backward the backward
    after it and its own forward, a weight gradient its own backward.
    """
    before: dict[tuple[int, int], tuple[int, int]] = {}
    for route in routes:
        before |= dict(zip(route[1:], route[:-1], strict=True))
    after = {previous: here for here, previous in before.items()}

    def needs(device: int, task: Task) -> list[Place]:
        if task.kind == "W":
            return [(device, task._replace(kind="B"))]
        own = [(device, task._replace(kind="F"))] if task.kind == "B" else []
        other = (before if task.kind == "F" else after).get((device, task.chunk))
        return own if other is None else [*own, (other[0], task._replace(chunk=other[1]))]

    return needs


def round_and_round(p: int, m: int, v: int) -> Needs:
    """The needs where a microbatch passes all devices once for each chunk."""
    return along([[(device, chunk) for chunk in range(v) for device in range(p)]])
