"""Links of a group of GPUs: NVLink, xGMI or PCIe inside of a domain, rails of NICs between domains. No JAX here.

Rates. A group of n = d h has d members inside of each of h domains, whose NICs all work for it: d times the rate of one
NIC, capped by the rate inside (32 B200 over 4 hosts reach 95% of that, where a hierarchical algorithm could do
(n - 1) / n to (h - 1) / h better; stas00/ml-engineering, network/README.md). In a full mesh of links (xGMI) a group of
d has d - 1 of them. Where the network is oversubscribed above some number of chips, a ring enters such a part once for
all m members there, at m times the reduced rate; messages to all leave it at the reduced rate each.

Reduction in the switch (NVLink SHARP: Klenk et al. 2020, "An in-network architecture for accelerating shared-memory
multiprocessor collectives", section 3): every device sends its tensor once and receives the sum once, S bytes each way
instead of 2 (d - 1) / d S. In terms of a ring's bytes its rate is 2 (d - 1) / d links. The library takes the faster.

Starts (NCCL, src/graph/tuning.cc, `ncclTopoTuneModel`). A pass of a ring over d h members has h - 1 steps on the
network and n - h inside; an all-reduce is two passes, or goes up and down a tree whose domains are joined by
ceil(log2 h) steps. Gathers and scatters have no tree over several GPUs a host (NCCL's maintainers, issue 1473), so
their rate falls with the number of hosts (issue 1229). In an all-to-all the messages inside start at once, those to
other hosts one host after the other.
"""

from __future__ import annotations

import math

from jaxplan.machine.links import Links
from jaxplan.machine.tiers import Segment, members_within, size_of, two_tier_rate
from jaxplan.machine.topology import Machine

FABRICS = {"mesh": "xGMI", "switch": "NVLink", "pcie": "PCIe"}


def cluster_links(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> Links:
    """The links of a group that covers these segments of the domain and of the network."""
    chip = machine.chip
    inside, outside = size_of(segments[0]), size_of(segments[1])
    n, network = inside * outside, outside > 1
    nic = machine.dcn_bytes_per_s_per_host / machine.chips_per_host
    domain = chip.link_bytes_per_s * (max(1, inside - 1) if chip.fabric == "mesh" else 1)
    near = _members_of_part(machine, segments)
    far = nic / machine.dcn_oversubscription if near < n else nic
    rate = min(two_tier_rate(inside, outside, domain, nic), near * far if near < n else math.inf)
    exchange = max((n - near) / n / far, (n - inside) / n / nic, (inside - 1) / n / domain)
    fraction = (
        machine.dcn_fraction if network and (inside == 1 or rate < domain) else chip.collective_fraction
    )
    reduce, reduced = _all_reduce(machine, inside, rate, fraction) if not network else (rate, fraction)
    ring, up_and_down = _starts(machine, inside, outside)
    words = [f"{FABRICS[chip.fabric]}: {inside} chips"] if inside > 1 else []
    return Links(
        size=n,
        bytes_per_s=rate,
        all_reduce_bytes_per_s=reduce,
        all_to_all_bytes_per_s=(n - 1) / n / exchange,
        permute_bytes_per_s=(far if near == 1 else nic) if network else chip.link_bytes_per_s,
        latency_s=chip.launch_latency_s + ring,
        # never less than the reduce-scatter that is a part of it
        all_reduce_latency_s=chip.launch_latency_s + max(ring, min(2 * ring, up_and_down)),
        hop_latency_s=chip.launch_latency_s + (machine.dcn_hop_latency_s if network else chip.hop_latency_s),
        exchange_latency_s=chip.launch_latency_s
        + (inside > 1) * chip.hop_latency_s
        + (outside - 1) * machine.dcn_hop_latency_s,
        two_protocols=True,
        fraction=fraction,
        all_reduce_fraction=reduced,
        crosses_network=network,
        medium="; ".join([*words, *([f"network: {outside} domains"] if network else [])]),
    )


def _members_of_part(machine: Machine, segments: tuple[tuple[Segment, ...], ...]) -> int:
    """Members of the group in one part of the network that has its full rate inside."""
    inside, outside = size_of(segments[0]), size_of(segments[1])
    if not machine.dcn_flat_chips or machine.dcn_oversubscription == 1:
        return inside * outside
    return inside * members_within(segments[1], max(1, machine.dcn_flat_chips // machine.domain_chips))


def _all_reduce(machine: Machine, inside: int, ring: float, fraction: float) -> tuple[float, float]:
    """(rate, the part of it that is reached) of the faster way inside of a domain: by a ring, or in the switch."""
    chip = machine.chip
    switch = 2 * (inside - 1) / inside * chip.link_bytes_per_s
    if chip.switch_reduce_fraction * switch > fraction * ring:
        return switch, chip.switch_reduce_fraction
    return ring, fraction


def _starts(machine: Machine, inside: int, outside: int) -> tuple[float, float]:
    """Seconds of the steps of one pass round a ring, and of a tree's way up and down."""
    hop, dcn_hop = machine.chip.hop_latency_s, machine.dcn_hop_latency_s
    ring = (inside - 1) * outside * hop + (outside - 1) * dcn_hop
    return ring, 2 * ((inside - 1) * hop + math.ceil(math.log2(outside)) * dcn_hop)
