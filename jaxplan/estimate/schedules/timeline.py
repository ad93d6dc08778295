"""When each device works on what: a schedule's orders, played out under its needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxplan.estimate.schedules.form import Cell, Needs, Place, Task

#: One task of a timeline. `chunk` counts the chunks of the device; with dualpipe 0 goes down and 1 goes up.
ROW = np.dtype([
    ("device", "i4"), ("kind", "U1"), ("microbatch", "i4"), ("chunk", "i4"), ("start_s", "f8"), ("end_s", "f8"),
])


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step of a pipeline.

    Attributes:
        rows: [tasks] of `ROW`, device by device in the order of their starts. Kind B is a whole backward pass unless
            the same microbatch and chunk have a W on that device. What a scan computes in its bubble is no task.
        step_s: from the start of the first cell to the end of the last.
        idle_s: [devices], the part of the step in which a device does no task.
        peak_activations: [devices], the most that is held at once, in microbatches of one stage.
    """

    rows: np.ndarray
    step_s: float
    idle_s: Float[np.ndarray, " devices"]
    peak_activations: Float[np.ndarray, " devices"]

    def __post_init__(self) -> None:
        if self.rows.dtype != ROW:
            raise ValueError(f"rows must be of dtype {ROW}, got {self.rows.dtype}")
        one, two = self.rows[:-1], self.rows[1:]
        together = (one["start_s"] == two["start_s"]) & (one["end_s"] == two["end_s"])
        apart = (one["device"] < two["device"]) | (one["end_s"] <= two["start_s"])
        if not np.all(apart | together):
            raise ValueError(f"a device must end a task before it starts another, got {two[~(apart | together)][0]}")
        if np.any(self.idle_s < 0) or np.any(self.idle_s > self.step_s):
            raise ValueError(f"idle time must lie within the step of {self.step_s} s, got {self.idle_s}")

    @property
    def busy_s(self) -> Float[np.ndarray, " devices"]:
        """The part of the step in which each device does tasks."""
        return self.step_s - self.idle_s

    @property
    def bubble_fraction(self) -> Float[np.ndarray, " devices"]:
        """Idle over busy time."""
        return self.idle_s / self.busy_s

    @property
    def idle_share(self) -> Float[np.ndarray, " devices"]:
        """Idle time over the step."""
        return self.idle_s / self.step_s


class _Device:
    """A device at work: how far it is, what it holds, what it has done."""

    def __init__(
        self, order: Sequence[Cell], seconds: Mapping[str, Float[np.ndarray, " chunks"]], overlapped_s: float | None
    ) -> None:
        self.order, self.seconds, self.overlapped_s = order, seconds, overlapped_s
        self.chunks = len(seconds["F"])
        self.split = {task[1:] for cell in order for task in cell if task.kind == "W"}
        self.done, self.held, self.peak = 0, 0, 0
        self.clock, self.busy = 0.0, 0.0
        self.rows: list[tuple[str, int, int, float, float]] = []

    @property
    def cell(self) -> Cell | None:
        """What comes next."""
        return self.order[self.done] if self.done < len(self.order) else None

    def whole(self, task: Task) -> bool:
        """Whether it is a backward pass that computes the gradient of the weights too."""
        return task.kind == "B" and task[1:] not in self.split

    def takes(self, cell: Cell) -> float:
        if len(cell) > 1 and self.overlapped_s is not None:
            return self.overlapped_s
        total = 0.0
        for task in cell:
            chunk = min(max(task.chunk, 0), self.chunks - 1)  # in its bubble a scan computes on the nearest chunk
            total += self.seconds[task.kind][chunk] + (self.seconds["W"][chunk] if self.whole(task) else 0.0)
        return total

    def do(self, cell: Cell, arrived: float) -> float:
        """Works through a cell whose inputs are there from `arrived` on, and says when it ended."""
        start, seconds = max(self.clock, arrived), self.takes(cell)
        self.clock = end = start + seconds
        self.done += 1
        self.held += sum(task.kind == "F" for task in cell)
        self.peak = max(self.peak, self.held)
        self.held -= sum(task.kind == "W" or self.whole(task) for task in cell)
        real = [task for task in cell if 0 <= task.chunk < self.chunks]
        self.rows += [(task.kind, task.microbatch, task.chunk, start, end) for task in real]
        self.busy += seconds if real else 0.0
        return end


def play(
    orders: Sequence[Sequence[Cell]],
    needs: Needs,
    seconds: Mapping[str, Float[np.ndarray, "devices chunks"]],
    overlapped_s: Float[np.ndarray, " devices"] | None,
    repeats: int,
    send_s: float,
) -> Timeline:
    """Every device works through its order, each cell as soon as what it needs has ended and arrived.

    Args:
        orders: by device, its cells in order.
        seconds: by kind F, B or W; B is the backward pass to the inputs alone, and takes W's seconds too where an
            order has no W for it.
        overlapped_s: seconds of a cell of two tasks; the sum of both if None.
        repeats: the chunks whose activations make one microbatch of one stage.
        send_s: from the end of a task to where another device may use its result; sends take no device's time.

    Raises:
        ValueError: the devices wait for each other, or for a task that no order has.
    """
    together = [None] * len(orders) if overlapped_s is None else overlapped_s.tolist()
    devices = [
        _Device(order, {kind: by_device[s] for kind, by_device in seconds.items()}, together[s])
        for s, order in enumerate(orders)
    ]
    ended: dict[Place, float] = {}
    moved = True
    while moved:
        moved = False
        for s, device in enumerate(devices):
            while (cell := device.cell) is not None:
                inputs = [place for task in cell for place in needs(s, task)]
                if not all(place in ended for place in inputs):
                    break
                arrived = max((ended[place] + send_s * (place[0] != s) for place in inputs), default=0.0)
                end, moved = device.do(cell, arrived), True
                ended.update({(s, task): end for task in cell})
    stuck = {s: device.cell for s, device in enumerate(devices) if device.cell is not None}
    if stuck:
        raise ValueError(f"each device must find its inputs in the end, got some that wait for ever: {stuck}")
    return _timeline(devices, repeats)


def _timeline(devices: Sequence[_Device], repeats: int) -> Timeline:
    step_s = max(device.clock for device in devices)
    return Timeline(
        rows=np.array([(s, *row) for s, device in enumerate(devices) for row in device.rows], dtype=ROW),
        step_s=step_s,
        idle_s=np.maximum(step_s - np.array([device.busy for device in devices]), 0.0),  # both are rounded sums
        peak_activations=np.array([device.peak for device in devices]) / repeats,
    )
