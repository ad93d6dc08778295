"""The median step of one device as it passed, in the document that TensorBoard's tab draws (`compile.events`).

Operations of a loop stand in a node of their own, one child a trip, where the trace shows loops (hosts and TPUs do,
GPUs do not: their kernels stand one after the other).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxplan.compile.events import Event, Node, document
from jaxplan.profile.figures import Measured
from jaxplan.profile.kinds import LOOP, Class, Kind
from jaxplan.profile.ledger import segments, shares
from jaxplan.profile.xplane import PS


def timeline(measured: Measured, device: int = 0, step: int | None = None) -> dict[str, Any]:
    """One step of one device, schema `jaxplan.timeline/1`, source `measured`.

    Args:
        device: the row of the device in `measured.devices`.
        step: the row of the step in `measured.steps`; None is the median one.
    """
    return document(_Step(measured, device, measured.step if step is None else step).root(), "measured")


@dataclass
class _Open:
    """A node that operations are being added to. Of a loop a trip begins where its first operation comes again."""

    node: Node
    begin: int
    stop: int
    loops: bool = False
    first: str = ""
    trip_begin: int = 0

    def trip(self, name: str, start: int) -> tuple[Node, int]:
        """(node that an operation belongs to, when that began)."""
        if not self.loops:
            return self.node, self.begin
        self.first = self.first or name
        if name == self.first:
            self.end_trip(start)
            trip = Node(f"trip {len(self.node.children) + 1}")
            self.node.children.append(((start - self.begin) * PS, 1, trip))
            self.trip_begin = start
        return self.node.children[-1][2], self.trip_begin

    def end_trip(self, at: int | None = None) -> None:
        """A trip lasts until the next one, the last until its loop ends."""
        if self.loops and self.node.children:
            self.node.children[-1][2].duration_s = ((self.stop if at is None else at) - self.trip_begin) * PS


class _Step:
    def __init__(self, measured: Measured, device: int, step: int) -> None:
        trace = measured.trace
        self._measured, self._step = measured, step
        self.begin, self.end = (int(t) for t in trace.windows_ps[trace.devices[device].host, step])
        stop = trace.start_ps + trace.duration_ps
        rows = np.flatnonzero((trace.device == device) & (trace.start_ps >= self.begin) & (stop <= self.end))
        self.rows = rows[np.lexsort((-trace.duration_ps[rows], trace.start_ps[rows]))]
        self._hidden = self._exposure()

    def _kind(self, row: int) -> Kind:
        return self._measured.kinds[self._measured.kind_of_operation[row]]

    def _exposure(self) -> np.ndarray:
        """What of each operation compute covers, in ps."""
        trace, rows = self._measured.trace, self.rows
        own = segments(trace.track[rows], trace.start_ps[rows], trace.duration_ps[rows])
        groups = np.array([self._kind(row).group for row in rows], np.int64)
        windows = np.array([[self.begin, self.end]])
        found = shares(groups[own.operation], list(Class), own.start, own.end, windows, windows[:, 0])
        return found.hidden(trace.start_ps[rows], trace.start_ps[rows] + trace.duration_ps[rows])

    def root(self) -> Node:
        """The step, its loops within it."""
        trace = self._measured.trace
        root = Node(f"step {trace.steps[self._step]}", (self.end - self.begin) * PS)
        open_nodes = [_Open(root, self.begin, self.end)]
        for row, hidden in zip(self.rows.tolist(), self._hidden.tolist(), strict=True):
            start = int(trace.start_ps[row])
            stop = start + int(trace.duration_ps[row])
            while len(open_nodes) > 1 and open_nodes[-1].stop <= start:
                open_nodes.pop().end_trip()
            kind, name = self._kind(row), trace.names[trace.name[row]]
            holder, begin = open_nodes[-1].trip(name, start)
            if kind.group is Class.LOOP:
                node = Node(name, (stop - start) * PS)
                holder.children.append(((start - begin) * PS, 1, node))
                open_nodes.append(_Open(node, start, stop, kind.kind in ("while", LOOP)))
            else:
                holder.events.append(self._event(row, start - begin, hidden))
        for one in open_nodes:
            one.end_trip()
        return root

    def _event(self, row: int, offset: int, hidden: float) -> Event:
        trace, kind = self._measured.trace, self._kind(row)
        duration = int(trace.duration_ps[row])
        op_name = kind.instruction.op_name if kind.instruction is not None else ""
        name = "/".join(op_name.split("/")[-2:]) or trace.names[trace.name[row]]
        exposed = 0.0 if kind.group is Class.COMPUTE else max(0.0, duration - hidden) * PS
        return Event(kind.lane, offset * PS, duration * PS, name, kind.kind, exposed)
