"""One step as it passes on a device: what runs when, in lanes, loops kept as loops. No JAX here.

The document (schema `jaxplan.timeline/1`) is what the Plan tab of TensorBoard draws, of a compiled schedule and of a
measured step alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

SCHEMA = "jaxplan.timeline/1"
COMPUTE = "compute"
MOST_EVENTS = 400       # of one node: more are narrower than a pixel
JOINED = "several operations"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that takes time.

    Attributes:
        lane: `compute`, the mesh axes of a collective, `copies`, `host transfers`.
        start_s: after the start of the node that holds it.
        kind: as in a ledger of time: `matmul`, `memory-bound`, `all-gather`, ...
        exposed_s: the part of a transfer that the device waits for.
    """

    lane: str
    start_s: float
    duration_s: float
    name: str
    kind: str
    exposed_s: float = 0.0


@dataclass
class Node:
    """A stretch of a step: its own events, and loops and calls within it.

    Attributes:
        duration_s: of one execution.
        children: (start after this node's, how often one after the other, the node).
    """

    name: str
    duration_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    children: list[tuple[float, int, Node]] = field(default_factory=list)

    def expose(self, index: int, seconds: float) -> None:
        """Say of an event that the device waits for so much of it."""
        event = self.events[index]
        self.events[index] = replace(event, exposed_s=min(event.duration_s, max(0.0, seconds)))

    def lanes(self) -> Iterator[str]:
        """Of all events, in the order in which they are met."""
        yield from (event.lane for event in self.events)
        for _, _, child in self.children:
            yield from child.lanes()


def document(root: Node, source: Literal["compiled", "measured"]) -> dict[str, Any]:
    """The step as plain data; compute is the first lane."""
    lanes = list(dict.fromkeys([COMPUTE, *root.lanes()]))
    numbered = {name: i for i, name in enumerate(lanes)}
    return {
        "schema": SCHEMA,
        "source": source,
        "duration_s": root.duration_s,
        "lanes": lanes,
        "root": _plain(root, 0.0, 1, numbered),
    }


def _plain(node: Node, start_s: float, repeats: int, lanes: dict[str, int]) -> dict[str, Any]:
    return {
        "name": node.name,
        "start_s": start_s,
        "duration_s": node.duration_s,
        "repeats": repeats,
        "events": [
            [lanes[e.lane], e.start_s, e.duration_s, e.name, e.kind, e.exposed_s] for e in joined(node.events)
        ],
        "children": [_plain(child, at, times, lanes) for at, times, child in node.children],
    }


def joined(events: list[Event], most: int = MOST_EVENTS) -> list[Event]:
    """At most about `most` events: of too many, short ones that follow each other in a lane become one.

    Their durations are added up, so that a lane's total stays what it was.
    """
    if len(events) <= most:
        return events
    short = sorted(e.duration_s for e in events)[-most]
    out: list[Event] = []
    last: dict[str, int] = {}      # of each lane, the joined event that may take more
    for event in events:
        index = last.get(event.lane)
        if event.duration_s >= short:
            last.pop(event.lane, None)
            out.append(event)
        elif index is None:
            last[event.lane] = len(out)
            out.append(event)
        else:
            held = out[index]
            out[index] = Event(
                held.lane,
                held.start_s,
                held.duration_s + event.duration_s,
                JOINED,
                held.kind if held.kind == event.kind else "mixed",
                held.exposed_s + event.exposed_s,
            )
    return out
