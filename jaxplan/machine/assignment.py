"""Which factor of a mesh axis goes to which level of a machine. No JAX here.

Every level's length is a product of factors, one of each mesh axis. Of all ways to choose them the best is, in this
order: the chattiest axes reach over the fewest slices; the fewest torus axes are cut between mesh axes (whole rings
first); the chattiest axis has the highest rate, then the next one, and so on; the lowest latencies in the same order.

Each of these four is made of a term per axis, and an axis's term depends only on its own factors and on what the
chattier axes left free. So the best rest of an assignment depends only on the sizes that remain and on what is free,
and is found once, also for other meshes of the same machine (Bellman's principle of optimality: dynamic programming).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxplan.machine import rates
from jaxplan.machine.rates import Segment
from jaxplan.machine.topology import Machine

Factors = tuple[int, ...]  # of one mesh axis, one a level, the innermost level first
# of each axis the slices that it reaches over (negative), cuts of torus axes (negative), of each axis (rate, whether it
# stays off the network), of each axis its latency (negative)
Score = tuple[tuple[int, ...], int, tuple[tuple[float, bool], ...], tuple[float, ...]]
Solution = tuple[Score, tuple[Factors, ...]]

COMPLETE: Solution = (((), 0, (), ()), ())


def lengths(machine: Machine) -> tuple[int, ...]:
    """The lengths of the levels, innermost first: core, x, y, z (and slice) of a TPU, chip and domain of a GPU."""
    if machine.kind == "tpu":
        slices = (machine.slices,) if machine.slices > 1 else ()
        return (machine.chip.devices_per_chip, *machine.shape, *slices)
    return (machine.domain_chips, machine.chips // machine.domain_chips)


class Assigner:
    """The best assignments on one machine; keeps what it has found."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lengths = lengths(machine)
        self._torus = range(1, 1 + len(machine.shape)) if machine.kind == "tpu" else range(0)
        self._solutions: dict[tuple[tuple[int, ...], Factors], Solution | None] = {}
        self._terms: dict[tuple[Factors, Factors], Score] = {}

    def best(self, sizes: tuple[int, ...]) -> tuple[Factors, ...] | None:
        """The factors of each mesh axis, or None where the sizes are not made of the levels' factors.

        Args:
            sizes: of the mesh axes larger than 1, the chattiest first.
        """
        found = self._solve(sizes, self._lengths)
        return None if found is None else found[1]

    def _solve(self, sizes: tuple[int, ...], free: Factors) -> Solution | None:
        if not sizes:
            return COMPLETE if all(n == 1 for n in free) else None
        key = (sizes, free)
        if key not in self._solutions:
            self._solutions[key] = self._search(sizes, free)
        return self._solutions[key]

    def _search(self, sizes: tuple[int, ...], free: Factors) -> Solution | None:
        best: Solution | None = None
        for chosen in factorings(sizes[0], free):
            rest = self._solve(sizes[1:], tuple(n // f for n, f in zip(free, chosen, strict=True)))
            if rest is None:
                continue
            score = _sum(self._term(chosen, free), rest[0])
            if best is None or score > best[0]:
                best = (score, (chosen, *rest[1]))
        return best

    def _term(self, chosen: Factors, free: Factors) -> Score:
        """What one axis with these factors adds to the score, where the chattier ones left `free`."""
        key = (chosen, free)
        if key not in self._terms:
            levels = tuple(zip(chosen, free, self._lengths, strict=True))
            links = rates.links(
                self._machine,
                tuple((Segment(f, n // left, n),) if f > 1 else () for f, left, n in levels),
            )
            cuts = sum(levels[i][0] > 1 and levels[i][1] < levels[i][2] for i in self._torus)
            across = chosen[-1] if self._machine.slices > 1 else 1
            rate = (links.bytes_per_s, not links.crosses_network)
            self._terms[key] = ((-across,), -cuts, (rate,), (-links.latency_s,))
        return self._terms[key]


def _sum(one: Score, rest: Score) -> Score:
    return (one[0] + rest[0], one[1] + rest[1], one[2] + rest[2], one[3] + rest[3])


def factorings(size: int, free: Factors) -> Iterator[Factors]:
    """Every way to write `size` as a product of one divisor of each entry of `free`."""
    if not free:
        if size == 1:
            yield ()
        return
    for factor in range(1, math.gcd(size, free[0]) + 1):
        if size % factor == 0 and free[0] % factor == 0:
            for others in factorings(size // factor, free[1:]):
                yield (factor, *others)
