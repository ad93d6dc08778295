"""Where the time goes: a ledger under the names that goodput measurements use, which adds up to the total.

The names are those of ml-goodput-measurement (`BadputType`), so that a plan can be laid beside a measured run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.goodput import two_level
from jaxplan.goodput.expected import saves_in_cycle
from jaxplan.goodput.restart import OTHER, PHASES, Phase
from jaxplan.goodput.setting import Setting
from jaxplan.goodput.two_level import Local, Pattern

USEFUL = "useful work"
SAVE, WASTED = "checkpoint save", "wasted progress"


@dataclass(frozen=True)
class Entry:
    """A part of the time, as a share of the whole."""

    name: str
    share: float


@dataclass(frozen=True)
class Ledger:
    """Shares of the time, useful work first, each name once; they add up to 1."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        total = math.fsum(entry.share for entry in self.entries)
        if not math.isclose(total, 1, abs_tol=1e-9) or any(entry.share < 0 for entry in self.entries):
            raise ValueError(f"shares must not be negative and must add up to 1, got {total}: {self.entries}")

    def __getitem__(self, name: str) -> float:
        """The share of that name."""
        return next(entry.share for entry in self.entries if entry.name == name)


def ledger(setting: Setting, interval_s: float, phases: Sequence[Phase]) -> Ledger:
    """Mean shares of a cycle M + D (`expected`), exponential failures.

    Blocks of saves that became durable are saves; what follows the last durable save, blocks included, is wasted.

    Args:
        phases: of the restart, in order; they add up to `setting.restart_s`.
    """
    saves = float(saves_in_cycle(setting, interval_s))
    return _closed(setting, interval_s * saves, setting.block_s * saves, _restart(setting, phases, setting.restart_s))


def two_level_ledger(
    remote: Setting, local: Local, pattern: Pattern, phases: Sequence[Phase], local_phases: Sequence[Phase]
) -> Ledger:
    """The same of two levels of checkpoints; both kinds of saves are saves, both kinds of restarts restarts.

    Args:
        phases, local_phases: of a restart from the remote and from the local copy.
    """
    cycle = remote.mtbf_s + remote.wait_s
    useful = two_level.goodput(remote, local, pattern) * cycle
    blocks = (pattern.every - 1) * local.block_s + remote.block_s
    restart = dict.fromkeys(PHASES, 0.0)
    shares = two_level.restarts(remote, local)
    lengths = ((phases, remote.restart_s), (local_phases, local.restart_s))
    for share, (given, length) in zip(shares, lengths, strict=True):
        for name, spent in _restart(remote, given, length).items():
            restart[name] += share * spent
    return _closed(remote, useful, useful * blocks / pattern.remote_interval_s, restart)


def _restart(setting: Setting, phases: Sequence[Phase], restart_s: float) -> dict[str, float]:
    """Seconds of a cycle in each phase: M (exp(-a / M) - exp(-b / M)) from a to b of a restart, which failures end."""
    if not math.isclose(math.fsum(p.seconds for p in phases), restart_s, rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(f"phases must add up to the restart of {restart_s} s, got {phases}")
    found = dict.fromkeys(PHASES, 0.0)
    began = 0.0
    for phase in phases:
        spent = -setting.mtbf_s * math.exp(-began / setting.mtbf_s) * math.expm1(-phase.seconds / setting.mtbf_s)
        found[phase.name] += spent
        began += phase.seconds
    return found


def _closed(setting: Setting, useful_s: float, save_s: float, restart: dict[str, float]) -> Ledger:
    """The ledger of one cycle; what is left of it was wasted."""
    cycle = setting.mtbf_s + setting.wait_s
    seconds = {USEFUL: useful_s, **restart, SAVE: save_s}
    seconds[WASTED] = max(0.0, setting.mtbf_s - math.fsum(seconds.values()))
    seconds[OTHER] += setting.wait_s
    return Ledger(tuple(Entry(name, spent / cycle) for name, spent in seconds.items()))
