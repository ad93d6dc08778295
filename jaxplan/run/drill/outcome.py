"""What a fault did: plain data. No JAX."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """One fault, and what came of it.

    Attributes:
        fault: its name on the command line. what: what was done, in words.
        safe: what a safe system does.
        happened: what this one did.
        passed: whether that is safe; None where the fault could not be made here (`happened` says why).
        lost_s: from the fault until the step that was reached before is done again, a process's start and the
            compile included; None where nothing stopped.
        replayed: steps that were done twice.
    """

    fault: str
    what: str
    safe: str
    happened: str
    passed: bool | None
    lost_s: float | None = None
    replayed: int | None = None

    def and_said(self, more: str, passed: bool = True) -> Outcome:
        """The same with something more that happened, and was safe or not."""
        return replace(self, happened=f"{self.happened}; {more}", passed=bool(self.passed) and passed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Judged:
    """A resumed training beside the undisturbed one.

    Attributes:
        exact: every loss and every state is the undisturbed one's, to the bit.
        difference: the largest relative difference of a loss; None where no step is common.
        compared: steps that both took.
    """

    exact: bool
    difference: float | None
    compared: int

    @property
    def words(self) -> str:
        if self.exact:
            return f"{self.compared} steps equal to the bit"
        if self.difference is None:
            return "no step to compare"
        if self.difference == 0:
            return f"{self.compared} steps with equal losses and other states"
        return f"{self.compared} steps within {self.difference:.1e}, not equal to the bit"
