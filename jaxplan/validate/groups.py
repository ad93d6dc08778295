"""The links under each group of devices of a published run."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache

from jaxplan.errors import InputError
from jaxplan.estimate.shapes.facts import Group
from jaxplan.machine import rates
from jaxplan.machine.links import Links
from jaxplan.machine.placement import place
from jaxplan.machine.rates import Segment
from jaxplan.machine.topology import Machine
from jaxplan.validate.published import PublishedRun

ALONE = Group(1, 1.0, 0, 0.0, 1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Sizes:
    """Degrees of parallelism; `own`: experts have an axis of their own, which also splits the batch."""

    data: int
    fsdp: int
    tensor: int
    context: int
    stage: int
    expert: int
    own: bool

    @property
    def expert_axis(self) -> int:
        return self.expert if self.own else 1

    @property
    def stored(self) -> int:
        """Ranks that store parts of the experts' weights: context ranks share in it where weights are in parts."""
        return self.fsdp * self.context if self.fsdp * self.expert_axis > 1 else 1

    @property
    def lone_experts(self) -> int:
        """Ranks of data or fsdp that one set of experts takes up."""
        return 1 if self.own else self.expert

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.tensor * self.context * self.stage * self.expert_axis


def groups_of(run: PublishedRun, machine: Machine, sizes: Sizes) -> tuple[dict[str, Group], float]:
    """The groups of `Layout` by name, and the domains that a group of experts spans."""
    return _on_torus(machine, sizes) if machine.kind == "tpu" else _on_hosts(run, machine, sizes)


def _of(links: Links) -> Group:
    return Group(
        links.size,
        links.all_gather_bytes_per_s,
        float(links.crosses_network),
        links.latency_s,
        links.all_reduce_bytes_per_s,
        links.all_reduce_latency_s,
        float(links.two_protocols),
    )


def _exchange(links: Links, size: int, crosses: bool) -> Group:
    """The links as an all-to-all uses them."""
    rate, start = links.all_to_all_bytes_per_s, links.exchange_latency_s
    return dataclasses.replace(_of(links), size=size, bytes_per_s=rate, latency_s=start, network=float(crosses))


def _send(links: Links) -> Group:
    """The links as a message to the next stage uses them."""
    return dataclasses.replace(_of(links), size=2, bytes_per_s=links.permute_bytes_per_s, latency_s=links.hop_latency_s)


def _on_hosts(run: PublishedRun, machine: Machine, s: Sizes) -> tuple[dict[str, Group], float]:
    """Tensor ranks innermost, then experts with an axis of their own, context, fsdp, data, and stages outermost."""
    domain, t, c = machine.domain_chips, s.tensor, s.context
    inside_own = s.expert // (run.dcn_ep or 1) if s.own and run.dcn_ep else min(s.expert_axis, max(1, domain // t))

    def group(size: int, stride: int, outside: int | None = None) -> Group:
        if size <= 1:
            return ALONE
        inside = max(1, size // outside) if outside else max(1, min(size, domain // max(stride, 1)))
        return _of(_host_links(machine, inside, math.ceil(size / inside)))

    # MaxText shards dense weights over the expert axis as well (configs/base.yml, logical_axis_rules: embed)
    dense = s.stored * s.expert_axis
    replicas = s.data if s.own or s.fsdp > 1 else max(1, s.data // s.expert)
    data_stride = t * c * s.expert_axis * s.fsdp
    nodes = run.dcn_ep or max(1, math.ceil(s.expert * t / domain)) if s.expert > 1 else 1
    inside = max(1, s.expert // nodes)
    network = _host_links(machine, 1, 2)
    near = _host_links(machine, inside, 1) if inside > 1 else network
    beside = s.stage > 1 and data_stride * s.data < domain      # stages are outermost
    found = {
        "tensor_group": group(t, 1),
        "context_group": group(c, t),
        "fsdp_group": group(dense, t if s.own else t * inside_own, _domains(run, s)),
        "expert_fsdp_group": group(max(1, s.stored // s.lone_experts), t * inside_own * s.lone_experts),
        "data_group": group(s.data, data_stride),
        "expert_data_group": group(replicas, data_stride * s.lone_experts),
        "expert_group": _exchange(near, s.expert, nodes > 1),
        "expert_network": _exchange(network, s.expert, nodes > 1),
        "send_group": _send(_host_links(machine, 2, 1) if beside else network),
    }
    return found, float(nodes)


def _domains(run: PublishedRun, s: Sizes) -> int | None:
    """Domains that the shards of dense weights span, where the run says so."""
    if run.dcn_fsdp is None:
        return None
    return run.dcn_fsdp * (run.dcn_ep or 1) if s.own else run.dcn_fsdp


@lru_cache(maxsize=4096)
def _host_links(machine: Machine, inside: int, outside: int) -> Links:
    first = (Segment(inside, 1, machine.domain_chips),) if inside > 1 else ()
    second = (Segment(outside, 1, max(outside, machine.hosts)),) if outside > 1 else ()
    return rates.links(machine, (first, second))


def _on_torus(machine: Machine, s: Sizes) -> tuple[dict[str, Group], float]:
    """Mesh axes placed on the torus, the network between slices for data first."""
    links = _placed(machine, s)

    def group(*axes: str) -> Group:
        found = links(axes)
        return _of(found) if found.size > 1 else ALONE

    stored = ("fsdp", "context") if s.stored > 1 else ()
    dense = group(*stored, "expert") if s.own else group(*stored)
    shared = dataclasses.replace(dense, size=max(1, s.stored // s.lone_experts))
    experts = links(("expert",) if s.own else ("fsdp",))
    exchange = _exchange(experts, s.expert, experts.crosses_network) if s.expert > 1 else ALONE
    found = {
        "tensor_group": group("tensor"),
        "context_group": group("context"),
        "fsdp_group": dense,
        "expert_fsdp_group": group(*stored) if s.own else shared,
        "data_group": group("data"),
        "expert_data_group": group("data"),
        "expert_group": exchange,
        "expert_network": exchange,
        "send_group": _send(links(("stage",))) if s.stage > 1 else ALONE,
    }
    return found, 1.0


def _placed(machine: Machine, s: Sizes):
    """The links of mesh axes; where their sizes do not fit the torus, those of the whole of it, for any group."""
    sizes = {"stage": s.stage, "data": s.data, "fsdp": s.fsdp}
    sizes |= {"expert": s.expert_axis, "context": s.context, "tensor": s.tensor}
    try:
        return place(machine, sizes).links
    except (InputError, ValueError):
        whole = place(machine, {"data": machine.slices, "fsdp": machine.devices // machine.slices})

    def links(axes: tuple[str, ...]) -> Links:
        size = math.prod(sizes[axis] for axis in axes)
        everywhere = whole.links(("data",) if axes == ("data",) and machine.slices > 1 else ("fsdp",))
        return dataclasses.replace(everywhere, size=size)

    return links
