"""How long a collective takes on given links. No JAX here.

Lower bounds of Chan et al. 2007 ("Collective communication: theory, practice, and experience", table 1) with
the rates that a placement gives; alpha is one pass over the group, beta the inverse rate:

    all-gather          alpha + (n - 1) / n  bytes beta         bytes: the gathered result
    reduce-scatter      alpha + (n - 1) / n  bytes beta         bytes: the input
    all-reduce          2 alpha + 2 (n - 1) / n  bytes beta     bytes: the tensor (reduce-scatter, then
    all-gather) all-to-all          alpha + (n - 1) / n  bytes beta_all     bytes: what one device holds
    collective-permute  alpha + bytes beta_next                 bytes: one message

Reductions inside a switch (NVLink SHARP) are not counted: an all-reduce with them is up to twice as fast.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxplan.machine.links import Links

Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
KINDS: tuple[Collective, ...] = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
)
PASSES = {"all-reduce": 2}


def rate(kind: str, links: Links) -> float:
    """The bytes/s per device at which that kind runs on these links.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"collective must be one of {', '.join(KINDS)}, got {kind!r}")
    return {
        "all-gather": links.all_gather_bytes_per_s,
        "reduce-scatter": links.reduce_scatter_bytes_per_s,
        "all-reduce": links.bytes_per_s,
        "all-to-all": links.all_to_all_bytes_per_s,
        "collective-permute": links.permute_bytes_per_s,
    }[kind]


def moved(kind: str, nbytes: ArrayLike, size: int) -> NDArray[np.float64]:
    """Bytes that one device sends (and receives) in that collective over `size` devices."""
    count = np.asarray(nbytes, dtype=np.float64)
    if kind == "collective-permute":
        return count if size > 1 else 0.0 * count
    return PASSES.get(kind, 1) * (size - 1) / size * count


def seconds(kind: str, nbytes: ArrayLike, links: Links) -> NDArray[np.float64]:
    """Time of one collective, elementwise over `nbytes`.

    Args:
        kind: one of `KINDS`.
        nbytes: bytes as the table of this module counts them, any shape, not negative.
        links: from `Placement.links`; of `Links.achieved()` where the measured rates are wanted.
    """
    count = np.asarray(nbytes, dtype=np.float64)
    if np.any(count < 0):
        raise ValueError(f"nbytes must not be negative, got {count.min()}")
    speed = rate(kind, links)
    if links.size == 1:
        return np.zeros_like(count)
    passes = PASSES.get(kind, 1)
    return np.where(count > 0, passes * links.latency_s + moved(kind, count, links.size) / speed, 0.0)
