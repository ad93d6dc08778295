"""What a matmul and an all-reduce hide of each other when neither needs the other's result. Imports JAX when called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxplan.profile.calibrate.collectives import GROUP

Array = Any
MATMUL, MOVED, BOTH = "overlap matmul", "overlap all-reduce", "overlap of both"
HOST_SIZES, LARGE_SIZES = (512, 256 * 1024), (8192, 64 * 1024**2)   # edge of the matmul, elements of the all-reduce


def programs(
    devices: int, large: bool
) -> Iterator[tuple[str, Callable[..., Any], tuple, dict[str, int], dict[str, Any]]]:
    """(name, function, arguments, mesh axes, facts) of the matmul, of the all-reduce, and of both in one program."""
    from jax import lax

    edge, elements = LARGE_SIZES if large else HOST_SIZES
    dtype = "bfloat16" if large else "float32"
    square, flat = ((edge, edge), dtype), ((elements,), "float32")
    axes = {GROUP: devices}
    about = {"kind": "", "group": devices, "bytes": 4 * elements}
    yield MATMUL, lambda x: x @ x, (square,), axes, about
    yield MOVED, lambda y: lax.psum(y, GROUP), (flat,), axes, about
    yield BOTH, lambda x, y: (x @ x, lax.psum(y, GROUP)), (square, flat), axes, about


def hidden(pieces: Sequence[Mapping[str, Any]]) -> float | None:
    """Of the shorter of both the part that the other hides, from 0 to 1; None where one of the three is missing."""
    taken = {piece["name"]: piece["seconds"] for piece in pieces}
    if not all(taken.get(name, 0.0) > 0 for name in (MATMUL, MOVED, BOTH)):
        return None
    alone, moved = taken[MATMUL], taken[MOVED]
    return min(1.0, max(0.0, (alone + moved - taken[BOTH]) / min(alone, moved)))
