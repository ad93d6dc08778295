"""What a child process of the drill is told: who it is, and what to train. Plain data, both ways. No JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Store = Literal["jaxplan", "orbax"]
MOST_CHARACTERS = 300
STORES: tuple[Store, ...] = ("jaxplan", "orbax")


@dataclass(frozen=True)
class Peers:
    """Several processes as one: where process 0 listens, how many there are, which this one is."""

    address: str
    processes: int
    process: int


@dataclass(frozen=True)
class Session:
    """One child process.

    Attributes:
        decisions: the plan's (`Plan.decisions`).
        store: who saves: `jaxplan.checkpoint`, or orbax's own manager.
        cache: folder of JAX's compilation cache, so that a process that comes back does not compile again.
        grace_s: from SIGTERM to the kill.
    """

    decisions: Mapping[str, Any]
    store: Store
    cache: str
    grace_s: float
    peers: Peers | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "peers": None if self.peers is None else asdict(self.peers)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Session:
        peers = data["peers"]
        return cls(**{**data, "peers": None if peers is None else Peers(**peers)})


@dataclass(frozen=True)
class Order:
    """One training to do: resumed from the folder's checkpoints where it has some.

    Attributes:
        last: the last step.
        every: steps from one save to the next.
        keep: checkpoints that stay.
        layout: `plan`, or `other`: half of its devices, with other roles.
        optimizer: another one than the plan's; empty: the plan's.
        dtype: another one for the parameters; empty: the plan's.
        cast: take another dtype than the saved one.
        shards, order: of the data's readers (`checkpoint.Position`).
        hang_at, poison_at: in this step the loop hangs; after it the parameters are NaN.
        check_room: refuse a save for which there is no room before it starts.
        file_limit: from this step on no file may grow beyond so many bytes, for one interval: [step, bytes].
        watchdog_s: the longest step.
        pace_s: how long the data of a step takes to come.
        roll_back_to: before training, go back to that step.
    """

    folder: str
    last: int
    every: int
    keep: int = 3
    layout: str = "plan"
    optimizer: str = ""
    dtype: str = ""
    cast: bool = False
    shards: int = 1
    order: Literal["global", "shard"] = "global"
    hang_at: int = 0
    poison_at: int = 0
    check_room: bool = True
    file_limit: tuple[int, int] | None = None
    watchdog_s: float = 60.0
    pace_s: float = 0.0
    roll_back_to: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Came:
    """What a training told, in order: dicts with a key `event`; and how its process ended, if it did.

    Attributes:
        exit_code: of the process where the training ended with it (negative: the signal); None where it lives on.
        seconds: from the order to the last event.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    exit_code: int | None = None
    stderr: str = ""
    seconds: float = 0.0
    losses: Mapping[int, float] = field(default_factory=dict)
    digests: Mapping[int, str] = field(default_factory=dict)

    def first(self, event: str) -> Mapping[str, Any] | None:
        return next((e for e in self.events if e["event"] == event), None)

    def every(self, event: str) -> list[Mapping[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    @property
    def done(self) -> bool:
        return self.first("done") is not None

    @property
    def resumed_at(self) -> int | None:
        """The step that was restored; None where nothing was."""
        found = self.first("resumed")
        return None if found is None else found["step"]

    @property
    def said(self) -> str:
        """The first line of what went wrong."""
        for event in ("refused", "failed"):
            found = self.first(event)
            if found is not None:
                return short(str(found["message"]))
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("watchdog:", "preemption:"))]
        return short((told or lines)[-1]) if lines else ""


def short(message: str, most: int = MOST_CHARACTERS) -> str:
    """The first line of a message, which storage libraries make as long as a page."""
    line = message.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[:most]}..."
