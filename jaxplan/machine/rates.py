"""Rates of a group of devices from the stretches of links that it covers. No JAX here.

Every rate is per device and one way, with all groups of the same mesh axes at work at once.

Torus (How To Scale Your Model, `tpus.md` and `sharding.md`; Chan et al. 2007, "Collective communication:
theory, practice, and experience", sections 3 and 4). A chip at the end of a line receives through one link, a
chip of a ring through two: line `link`, closed ring `2 link`. Stretches over several torus axes are gathered
at once and add up. A stretch of stride s shares its links with s interleaved groups: `link / s`, `2 link / s`
where the sub-ring closes; it is gathered first, one after the other, while the data is small.

Over several torus axes the compiler's all-reduce uses every link, its all-gather and reduce-scatter often
only two links a chip, in a single ring through the whole group (`gathers_on_all_axes`,
`scatters_on_all_axes`: read from the HLO of libtpu 0.0.42.1, jax 0.10.2).

Two tiers (devices of a chip inside, torus outside). A group of n = d h has d members inside each of h chips, whose
outer links all work for it: d times the outer rate of one device, capped by the inner rate. GPUs: `machine.cluster`.

Several slices (scaling book, `tpus.md`: slices joined by the data-centre network). A device has an equal share of its
host's network. libtpu makes one collective on ICI and one on the network, one after the other, so that the network
moves only the part of each member of the slice: an all-gather starts over slices, a reduce-scatter ends there, an
all-reduce does so between the two (read from the HLO of libtpu 0.0.42.1). An all-to-all goes through the hosts and
their network as a whole, also between members of one slice.

All-to-all by bisection (Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
operations in MPICH", section 3.3, for the bound; the torus cut as in the scaling book): of a stretch of f
with S bytes a device, f S / 4 cross the middle each way, through one link of a line or two of a ring.
"""

from __future__ import annotations

import math

from jaxplan.machine.cluster import cluster_links
from jaxplan.machine.host_links import host_links
from jaxplan.machine.links import ALONE, Links
from jaxplan.machine.tiers import Segment, size_of, staged_rate, two_tier_rate
from jaxplan.machine.topology import Machine

AXIS_NAMES = "xyz"


def links(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> Links:
    """The links of a group that covers these segments, innermost level first."""
    if machine.kind == "cpu" and machine.attached is not None:
        return host_links(machine.attached, machine.devices, math.prod(map(size_of, segments)))
    return _tpu(machine, segments) if machine.kind == "tpu" else cluster_links(machine, segments)


Stretch = tuple[Segment, bool]  # with whether it closes into a ring


def _tpu(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> Links:
    """Inside a slice, or over slices: there one stage on ICI and one on the data-centre network."""
    torus, slices = segments[: 1 + len(machine.shape)], segments[1 + len(machine.shape) :]
    outside = math.prod(map(size_of, slices))
    inside = math.prod(map(size_of, torus))
    within = _torus(machine, torus) if inside > 1 else ALONE
    return within if outside == 1 else _over_slices(machine, within, outside)


def _over_slices(machine: Machine, within: Links, outside: int) -> Links:
    """The links of a group that has the members `within` in each of `outside` slices."""
    nic = machine.dcn_bytes_per_s_per_host / machine.devices_per_host
    inside, chip = within.size, machine.chip
    ring, gather, scatter = (
        staged_rate(inside, outside, rate, nic)
        for rate in (within.bytes_per_s, within.all_gather_bytes_per_s, within.reduce_scatter_bytes_per_s)
    )
    network_s = (outside - 1) / outside / inside / nic
    bound_by_network = network_s >= (inside - 1) / inside / within.bytes_per_s
    hops = math.ceil(math.log2(outside)) * machine.dcn_hop_latency_s
    return Links(
        size=inside * outside,
        bytes_per_s=ring,
        all_gather_bytes_per_s=gather,
        reduce_scatter_bytes_per_s=scatter,
        all_to_all_bytes_per_s=nic,
        permute_bytes_per_s=nic,
        latency_s=within.latency_s + chip.launch_latency_s + hops,
        hop_latency_s=chip.launch_latency_s + machine.dcn_hop_latency_s,
        fraction=machine.dcn_fraction if bound_by_network else chip.collective_fraction,
        crosses_network=True,
        medium="; ".join([*([within.medium] if inside > 1 else []), f"DCN: {outside} slices"]),
    )


def _torus(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> Links:
    chip, wraps = machine.chip, machine.wraps
    inside, outside = size_of(segments[0]), math.prod(size_of(level) for level in segments[1:])
    share = chip.devices_per_chip  # devices that share the links of one chip
    flat = [(s, s.closes(wrap)) for level, wrap in zip(segments[1:], wraps, strict=True) for s in level]
    on_chip = chip.on_chip_bytes_per_s or math.inf
    every = torus_rate(flat, chip.link_bytes_per_s) if flat else math.inf
    # an all-reduce and a slice do a reduce-scatter at half its rate: never less than that
    ring = max(min(every, 2 * chip.link_bytes_per_s), every / 2)
    gather = every if gathers_on_all_axes(machine, flat) else ring
    scatter = every if scatters_on_all_axes(machine, flat) else ring
    n = inside * outside
    hops = sum((s.size // 2 if ring else s.size - 1) * s.stride for s, ring in flat) + (inside > 1)
    return Links(
        size=n,
        bytes_per_s=two_tier_rate(inside, outside, on_chip, every / share),
        all_gather_bytes_per_s=two_tier_rate(inside, outside, on_chip, gather / share),
        reduce_scatter_bytes_per_s=two_tier_rate(inside, outside, on_chip, scatter / share),
        all_to_all_bytes_per_s=_torus_exchange(machine, flat, inside, n),
        permute_bytes_per_s=_torus_neighbour(machine, flat, inside),
        latency_s=chip.launch_latency_s + hops * chip.hop_latency_s,
        hop_latency_s=chip.launch_latency_s + max((s.stride for s, _ in flat), default=1) * chip.hop_latency_s,
        fraction=chip.collective_fraction,
        medium=_torus_words(segments, wraps),
    )


def gathers_on_all_axes(machine: Machine, stretches: list[Stretch]) -> bool:
    """Whether an all-gather uses the links of every torus axis at once.

    Over one axis; over a whole torus of three closed axes; always where SparseCores gather axis by axis (tpu7x).
    """
    if len(stretches) < 2 or machine.chip.gathers_axis_by_axis:
        return True
    return _whole(machine, stretches) and len(stretches) == 3 and all(closed for _, closed in stretches)


def scatters_on_all_axes(machine: Machine, stretches: list[Stretch]) -> bool:
    """Whether a reduce-scatter does.

    Over one axis; over a whole slice whose axes are all closed or all open; never over several axes on v3 and tpu7x.
    """
    if len(stretches) < 2:
        return True
    alike = len({closed for _, closed in stretches}) == 1
    return machine.chip.devices_per_chip == 1 and alike and _whole(machine, stretches)


def _whole(machine: Machine, stretches: list[Stretch]) -> bool:
    return math.prod(s.size for s, _ in stretches) == math.prod(machine.shape)


def _torus_exchange(machine: Machine, stretches: list[Stretch], inside: int, size: int) -> float:
    """All-to-all by the fullest cut of any axis, or by what the devices of a chip swap."""
    chip = machine.chip
    cuts = [
        s.size * s.stride * chip.devices_per_chip / (4 * (2 if ring else 1) * chip.link_bytes_per_s)
        for s, ring in stretches
    ]
    if inside > 1:
        cuts.append((inside - 1) / size / chip.on_chip_bytes_per_s)
    return (size - 1) / size / max(cuts)


def _torus_neighbour(machine: Machine, stretches: list[Stretch], inside: int) -> float:
    """A message to the next member: one of a chip's members sends off it; strides share links."""
    chip = machine.chip
    inner = chip.on_chip_bytes_per_s if inside > 1 else math.inf
    slowest = max((s.stride for s, _ in stretches), default=0)
    return (
        min(inner, chip.link_bytes_per_s * inside / (slowest * chip.devices_per_chip)) if stretches else inner
    )


def torus_rate(segments: list[tuple[Segment, bool]], link: float) -> float:
    """Ring-like bytes/s into one chip over stretches of torus axes, each with whether it closes into a
    ring."""
    h = math.prod(s.size for s, _ in segments)
    clean = [(s, ring) for s, ring in segments if s.stride == 1]
    strided = sorted((s for s in segments if s[0].stride > 1), key=lambda s: -s[0].stride)
    seconds, gathered = 0.0, 1 / h  # for one byte of result
    for s, ring in strided:
        gathered *= s.size
        seconds += (s.size - 1) / s.size * gathered / ((2 if ring else 1) * link / s.stride)
    if clean:
        rate = sum((2 if ring else 1) * link for _, ring in clean)
        size = math.prod(s.size for s, _ in clean)
        seconds += (size - 1) / size / rate
    return (h - 1) / h / seconds


def _torus_words(segments: tuple[tuple[Segment, ...], ...], wraps: tuple[bool, ...]) -> str:
    words = ["both devices of a chip"] if segments[0] else []
    for name, level, wrap in zip(AXIS_NAMES, segments[1:], wraps, strict=False):
        for s in level:
            shape = "ring" if s.closes(wrap) else "line"
            words.append(
                f"ICI {name}: {shape} of {s.size}" + (f", every {s.stride}th" if s.stride > 1 else "")
            )
    return "; ".join(words)
