"""Where faults are played: an undisturbed training to compare with, folders with its checkpoints, processes. No JAX."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxplan.errors import InputError, VerdictError
from jaxplan.plan.plan import Plan
from jaxplan.run.drill.orders import Came, Order, Peers, Session, Store
from jaxplan.run.drill.outcome import Judged
from jaxplan.run.drill.worker import SilentError, Worker
from jaxplan.run.process import variables

#: Chosen: nothing of a tiny training takes longer without a word, a cold compile of it included.
SILENCE_S = 180.0
GRACE_S = 20.0
MOST_VIRTUAL = 8        # chosen: CPU devices that stand in for a plan's, where none are attached
#: Relative, of losses on another mesh: bfloat16 has 8 bits, so that one rounding is 2^-8; measured over 90 steps 2e-3,
#: in float32 1.4e-6 over 30.
TOLERANCES = {"bfloat16": 2**-8, "float32": 1e-5}
EXPERTS_TOLERANCE = 2**-6       # chosen: a rounding sends a token to another expert (measured: 4.3e-3 in 5 steps)
LEAST_INTERVALS = 3     # faults strike between the second save and the third


@dataclass
class Stage:
    """One drill.

    Attributes:
        plan: what is drilled. folder: of everything that the drill writes.
        steps, every: the training's length, and from one save to the next.
        devices: so many virtual CPU devices; None: what is attached, or virtual ones where that is a processor alone.
        other_python: an interpreter with another jax; empty: none.
    """

    plan: Plan
    folder: Path
    steps: int
    every: int
    store: Store
    devices: int | None = None
    other_python: str = ""
    reference: Came = field(default_factory=Came)
    attached: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps < LEAST_INTERVALS * self.every or self.every < 2:
            least = f"expected steps >= {LEAST_INTERVALS} x every and every >= 2"
            raise ValueError(f"{least}, got {self.steps} and {self.every}")

    @property
    def early(self) -> int:
        """The first step that is saved."""
        return self.every

    @property
    def late(self) -> int:
        """The second."""
        return 2 * self.every

    def prepare(self) -> None:
        """The undisturbed training, and its checkpoints as they were after the second save.

        Raises:
            InputError: the plan cannot be cut to what is here.
            VerdictError: the training fails by itself.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._undisturbed()
        except SilentError as error:
            raise VerdictError(f"the plan does not train here undisturbed: {error}: it is too large here") from error

    def _undisturbed(self) -> None:
        self._attach()
        whole = self.order("undisturbed", keep=self.steps)
        first = self.train(replace(whole, last=self.late))
        if first.done:
            shutil.copytree(whole.folder, self._seed)
            self.reference = self.train(whole)
        if not (first.done and self.reference.done):
            said = first.said or self.reference.said
            if any((came.first("failed") or {}).get("kind") == "InputError" for came in (first, self.reference)):
                raise InputError(said)
            raise VerdictError(f"the plan does not train here undisturbed: {said}")
        self.reference = replace(
            self.reference,
            losses={**first.losses, **self.reference.losses},
            digests={**first.digests, **self.reference.digests},
        )

    def order(self, name: str, **changes: Any) -> Order:
        """A whole training in a folder of that name."""
        return Order(**{"folder": str(self.folder / name), "last": self.steps, "every": self.every, **changes})

    def seeded(self, name: str, **changes: Any) -> Order:
        """The same in a folder that has the undisturbed training's first two checkpoints."""
        order = self.order(name, **changes)
        shutil.copytree(self._seed, order.folder)
        return order

    def start(self, peers: Peers | None = None, python: str = "", devices: int | None = None) -> Worker:
        """A new process."""
        session = Session(self.plan.decisions(), self.store, str(self.folder / "compiled"), GRACE_S, peers)
        environment = variables(self.devices if devices is None else devices, os.environ)
        return Worker(session, environment, python) if python else Worker(session, environment)

    def pair(self) -> list[Worker]:
        """Two new processes that are one training, each with half of the devices."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        half = self.attached["devices"] // 2
        return [self.start(Peers(address, 2, i), devices=half) for i in range(2)]

    @cached_property
    def worker(self) -> Worker:
        """The process for trainings that end well; a dead one is replaced."""
        return self.start()

    def train(self, order: Order) -> Came:
        """A training in the process that lives on; where it dies, in a new one the next time."""
        came = self.worker.train(order, SILENCE_S)
        if came.exit_code is not None:
            self.renew()
        self.program = self.program or came.first("program") or {}
        return came

    def renew(self) -> None:
        """Ends the process that lives on."""
        if "worker" in self.__dict__:
            self.worker.__exit__()
            del self.__dict__["worker"]

    def resume(self, order: Order, since: float, at: int) -> tuple[Came, float | None]:
        """A training in a new process, as a supervisor starts it; and the seconds since then until step `at` is done.

        The process lives on.
        """
        self.renew()
        seconds: float | None = None
        try:
            came = self.worker.train(order, SILENCE_S, until=lambda e: e["event"] == "step" and e["step"] >= at)
            seconds = time.monotonic() - since if came.exit_code is None else None
            if came.events and came.events[-1]["event"] == "step":
                came = joined(came, self.worker.listen(SILENCE_S))
        except SilentError:
            self.renew()
            return Came(), None
        if came.exit_code is not None:
            self.renew()
        return came, seconds

    def judge(self, came: Came, beside: Came | None = None) -> Judged:
        """The steps of a training beside the undisturbed ones, or another training's."""
        other = self.reference if beside is None else beside
        common = [step for step in came.losses if step in other.losses]
        exact = bool(common) and all(
            came.losses[s] == other.losses[s] and came.digests[s] == other.digests[s] for s in common
        )
        pairs = [(came.losses[s], other.losses[s]) for s in common]
        apart = [float("inf") if a is None else abs(a - b) / abs(b) for a, b in pairs]
        return Judged(exact, max(apart, default=None), len(common))

    def restored_whole(self, came: Came) -> bool:
        """Whether the restored state is the undisturbed one's of that step, to the bit."""
        found = came.first("resumed")
        return found is not None and found["digest"] == self.reference.digests.get(found["step"])

    def _attach(self) -> None:
        """Starts the process that lives on, and learns what it sees; a processor alone is given virtual devices.

        Raises:
            VerdictError: JAX does not start here.
        """
        for _ in range(2):
            came = self.worker.listen(SILENCE_S, lambda e: e["event"] == "attached")
            if came.exit_code is not None:
                raise VerdictError(f"JAX does not start here: {came.said}")
            self.attached = came.events[-1]
            if self.devices is not None or self.attached["platform"] != "cpu" or self.attached["devices"] > 1:
                return
            self.devices = min(self.plan.machine.devices, MOST_VIRTUAL)
            self.renew()

    @property
    def virtual(self) -> bool:
        """Whether the devices are parts of the host's processor."""
        return self.attached["platform"] == "cpu"

    @property
    def tolerance(self) -> float:
        """How far a loss on another mesh may be from the undisturbed one, relatively."""
        if self.program["experts"]:
            return EXPERTS_TOLERANCE
        return TOLERANCES.get(self.program["compute_dtype"], TOLERANCES["bfloat16"])

    @cached_property
    def checkpoint_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._seed / str(self.late)).rglob("*") if path.is_file())

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.renew()

    @property
    def _seed(self) -> Path:
        return self.folder / "seed"


def joined(first: Came, rest: Came) -> Came:
    """One training that was listened to twice."""
    return replace(
        rest,
        events=(*first.events, *rest.events),
        losses={**first.losses, **rest.losses},
        digests={**first.digests, **rest.digests},
        seconds=first.seconds + rest.seconds,
    )


def array_file(order: Order, step: int) -> Path:
    """The file of a step that holds its arrays: by far the largest."""
    files = [path for path in (Path(order.folder) / str(step) / "state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
