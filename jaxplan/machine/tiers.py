"""Stretches of a level, and the rate of a group whose members lie in several tiers. No JAX here."""

from __future__ import annotations

import math
from typing import NamedTuple


class Segment(NamedTuple):
    """`size` positions, `stride` apart, of a level of that `length`."""

    size: int
    stride: int
    length: int

    def closes(self, wraps: bool) -> bool:
        """Whether it is a ring: it goes all the way round a level that wraps. Two positions are a line."""
        return wraps and self.size > 2 and self.size * self.stride == self.length


def size_of(segments: tuple[Segment, ...]) -> int:
    return math.prod(segment.size for segment in segments)


def members_within(segments: tuple[Segment, ...], block: int) -> int:
    """Members of a group in one block of that many neighbouring positions of a level."""
    return math.prod(min(s.size, max(1, block // s.stride)) for s in segments)


def two_tier_rate(inside: int, outside: int, inner_rate: float, outer_rate: float) -> float:
    """Ring-like rate per device of a group of inside x outside devices.

    Args:
        inside: members of the group in one tier, d.
        outside: tiers, h.
        inner_rate: bytes/s into one device from inside its tier.
        outer_rate: bytes/s into one tier from outside, for each of the d members (their links work for the
            group).
    """
    if outside == 1:
        return inner_rate
    crossing = inside * outer_rate
    return crossing if inside == 1 else min(inner_rate, crossing)


def staged_rate(inside: int, outside: int, inner_rate: float, outer_rate: float) -> float:
    """Rate per device of a group of inside x outside devices whose two tiers are gathered one after the other.

    Of a gathered byte, (outside - 1) / outside / inside arrives from outside in the first stage, and the rest from the
    d = inside members of the tier, each of which fetched its own part.

    Args:
        inside, outside, inner_rate, outer_rate: as of `two_tier_rate`.
    """
    n = inside * outside
    seconds = (outside - 1) / n / outer_rate + (inside - 1) / inside / inner_rate
    return (n - 1) / n / seconds
