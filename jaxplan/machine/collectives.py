"""How long a collective takes on given links. No JAX here.

Lower bounds of Chan et al. 2007 ("Collective communication: theory, practice, and experience", table 1) with
the rates that a placement gives; alpha is one pass over the group, beta the inverse rate, x what it moves:

    all-gather          alpha + x       x = (n - 1) / n  bytes beta         bytes: the gathered result
    reduce-scatter      alpha + x       x = (n - 1) / n  bytes beta         bytes: the input
    all-reduce          alpha' + x      x = 2 (n - 1) / n  bytes beta'      bytes: the tensor
    all-to-all          alpha_all + x   x = (n - 1) / n  bytes beta_all     bytes: what one device holds
    collective-permute  alpha_hop + x   x = bytes beta_next                 bytes: one message

alpha' is at most two passes, beta' less than beta where a switch adds (`machine.links`).

Libraries that have two protocols (NCCL, RCCL) send small messages with a flag in every word, at half of the rate or
less, and large ones in slices that must be announced, which takes about another start: NCCL's own tuning multiplies a
large ring's start by 1.9 ("plateau effect of ring") and divides the rate of its protocol LL by 2 to 4
(src/graph/tuning.cc).
The faster is used, min(alpha + 2 x, 2 alpha + x), so x + alpha grows by

    min(x, alpha).

Against the measured tables of ml-engineering that is 3.5% (8 H200), 6.6% (8 B200) and 5.3% (32 B200) off in the mean
where a straight line is 8.8, 11.9 and 6.9% off (tests/machine/test_collective_tables.py).
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
        "all-reduce": links.all_reduce_bytes_per_s,
        "all-to-all": links.all_to_all_bytes_per_s,
        "collective-permute": links.permute_bytes_per_s,
    }[kind]


def start(kind: str, links: Links) -> float:
    """Seconds that one execution of that kind takes however small it is."""
    other = {"all-reduce": links.all_reduce_latency_s, "collective-permute": links.hop_latency_s}
    other["all-to-all"] = links.exchange_latency_s
    return other.get(kind, links.latency_s) if links.size > 1 else 0.0


def moved(kind: str, nbytes: ArrayLike, size: int) -> NDArray[np.float64]:
    """Bytes that one device sends (and receives) in that collective over `size` devices, without help of a switch."""
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
    alpha, travel = start(kind, links), moved(kind, count, links.size) / speed
    again = np.minimum(travel, alpha) if links.two_protocols else 0.0
    return np.where(count > 0, alpha + travel + again, 0.0)
