"""Who saves and restores in the drill: `jaxplan.checkpoint`, or orbax's manager as its documentation uses it.

Imports JAX and orbax. Both have the same methods, so that one training loop drives both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orbax.checkpoint as ocp

from jaxplan.checkpoint import Checkpointer, Position, Preemption, Watchdog
from jaxplan.run.drill.orders import Order, Session, Store


@dataclass(frozen=True)
class Found:
    """A restored state; `about` is told to the parent."""

    step: int
    state: Any
    about: Mapping[str, Any]


class Keeper(Protocol):
    """One training's checkpoints and what watches over it. A context manager."""

    def restore(self, target: Any, order: Order) -> Found | None: ...
    def save(self, step: int, state: Any, loss: float, position: Position) -> None: ...
    def after(self, step: int) -> bool: ...     # whether to save and end
    def roll_back(self, step: int) -> None: ...
    def __enter__(self) -> Keeper: ...
    def __exit__(self, *exception: Any) -> None: ...


def keeper(store: Store, session: Session, order: Order, layer_order: Sequence[int]) -> Keeper:
    """The one of that name, for a plan of that `Plan.layer_order`."""
    return _Jaxplan(session, order, layer_order) if store == "jaxplan" else _Orbax(order)


class _Jaxplan:
    def __init__(self, session: Session, order: Order, layer_order: Sequence[int]) -> None:
        self._saved = Checkpointer(
            order.folder, keep=order.keep, check_room=order.check_room, layer_order=layer_order
        )
        self._alive = Watchdog(order.watchdog_s)
        self._preemption = Preemption(session.grace_s)

    def restore(self, target: Any, order: Order) -> Found | None:
        found = self._saved.restore(target, cast=order.cast)
        if found is None:
            return None
        saved = found.position
        place = None if saved is None else saved.on(order.shards)
        about = {
            "passed_over": [list(pair) for pair in found.passed_over],
            "notes": list(found.notes),
            "samples": None if place is None else place.samples,
            "shards": None if saved is None else saved.shards,
        }
        return Found(found.step, found.state, about)

    def save(self, step: int, state: Any, loss: float, position: Position) -> None:
        self._saved.save(step, state, loss=loss, position=position)

    def after(self, step: int) -> bool:
        self._alive(step)
        self._saved.check()
        return self._preemption.reached(step)

    def roll_back(self, step: int) -> None:
        self._saved.rollback(step)

    def __enter__(self) -> _Jaxplan:
        self._alive.__enter__()
        self._preemption.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._saved.__exit__(*exception)
        self._preemption.__exit__(*exception)
        self._alive.__exit__(*exception)


class _Orbax:
    def __init__(self, order: Order) -> None:
        self._manager = ocp.CheckpointManager(
            order.folder,
            item_names=("state", "data"),
            options=ocp.CheckpointManagerOptions(max_to_keep=order.keep, enable_async_checkpointing=True),
        )
        self._from: int | None = None

    def restore(self, target: Any, order: Order) -> Found | None:
        step = self._manager.latest_step() if self._from is None else self._from
        if step is None:
            return None
        items = ocp.args.Composite(state=ocp.args.StandardRestore(target), data=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=items)
        return Found(step, found["state"], {"passed_over": [], "notes": [], **found["data"]})

    def save(self, step: int, state: Any, loss: float, position: Position) -> None:
        del loss
        data = {"samples": position.samples, "shards": position.shards}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(data))
        self._manager.save(step, args=items)

    def after(self, step: int) -> bool:
        return self._manager.reached_preemption(step)

    def roll_back(self, step: int) -> None:
        self._from = step

    def __enter__(self) -> _Orbax:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._manager.wait_until_finished()
        self._manager.close()
