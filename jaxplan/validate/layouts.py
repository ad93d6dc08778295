"""The layout of a published run, and the links under each of its groups of devices."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import lru_cache

from jaxplan.errors import InputError
from jaxplan.estimate.shapes.facts import Group, Layout
from jaxplan.machine import lookup, rates
from jaxplan.machine.family import Family
from jaxplan.machine.links import Links
from jaxplan.machine.placement import Placement, place
from jaxplan.machine.rates import Segment
from jaxplan.machine.topology import Machine
from jaxplan.units import GBIT
from jaxplan.validate.models import Unpredictable
from jaxplan.validate.published import PublishedRun

ALONE = Group(1, 1.0, 0, 0.0, 1.0, 0.0, 0.0)
UNKNOWN_SLICE_CHIPS = 256


def layout_of(run: PublishedRun, machine: Machine) -> Layout:
    """How the run is spread over its machine.

    Raises:
        Unpredictable: batch or sequence are missing, or the axes do not multiply up to the devices.
    """
    if not run.seq_len or not run.global_batch:
        missing = [name for name in ("seq_len", "global_batch") if not getattr(run, name)]
        raise Unpredictable(f"the source gives no {', '.join(missing)}")
    own = run.ep_axis == "own"
    data, fsdp, tensor, context, stage, expert = (
        int(value or 1) for value in (run.dp, run.fsdp, run.tp, run.cp, run.pp, run.ep)
    )
    if run.dp is None and run.fsdp is None:
        fsdp = max(1, run.n_devices // (tensor * context * stage))    # no layout published: fully sharded
    shards = data * fsdp * (expert if own else 1)
    micro, count = _microbatches(run, shards, stage)
    groups = _tpu_groups if machine.kind == "tpu" else _gpu_groups
    sizes = _Sizes(data, fsdp, tensor, context, stage, expert, own)
    return Layout(
        devices=run.n_devices,
        data=data,
        fsdp=fsdp,
        tensor=tensor,
        context=context,
        stage=stage,
        repeats=max(1, run.vpp or 1),
        expert=expert,
        expert_own=float(own),
        micro_batch=micro,
        microbatches=count,
        seq=run.seq_len,
        slices=run.n_slices or 1,
        **groups(run, machine, sizes),
    )


@dataclasses.dataclass(frozen=True)
class _Sizes:
    data: int
    fsdp: int
    tensor: int
    context: int
    stage: int
    expert: int
    own: bool


def _microbatches(run: PublishedRun, shards: int, stage: int) -> tuple[float, float]:
    """(sequences of one microbatch of one shard, microbatches)."""
    assert run.global_batch is not None
    share = run.global_batch / shards
    count = run.num_microbatches or run.grad_accum
    micro = run.micro_batch
    if micro is None:
        micro = share / count if count else 1.0 if stage > 1 else min(share, 4.0)
    return micro, max(1.0, share / micro)


def machine_of(run: PublishedRun) -> Machine:
    """The machine that the run was on.

    Raises:
        Unpredictable: an unknown chip, or a number of devices that no such machine has.
    """
    try:
        chip = lookup.chip(run.chip)
        family = lookup.family_of_chip(chip)
    except InputError as error:
        raise Unpredictable(str(error)) from error
    chips = run.n_devices / chip.devices_per_chip
    slices = run.n_slices or 1
    if chips != int(chips) or chips % slices:
        raise Unpredictable(f"{run.n_devices} devices are no {slices} slices of {chip.id}")
    try:
        if chip.kind == "tpu":
            return _tpu_machine(run, family, int(chips) // slices, slices)
        return _gpu_machine(run, family)
    except InputError as error:
        raise Unpredictable(str(error)) from error


def _tpu_machine(run: PublishedRun, family: Family, chips: int, slices: int) -> Machine:
    shape = re.match(r"(?:\d+x )?(\d+(?:x\d+)+)", run.topology or "")
    if shape:
        axes = tuple(int(n) for n in shape[1].split("x"))
        if math.prod(axes) == chips:
            return family.machine(axes, slices=slices)
    return family.of_chips(chips, slices=slices)


_NICS = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb/s")
_TOTAL = re.compile(r"(\d+)\s*Gb/s[^,;]*per (node|GPU)")


def nic_bytes_per_s(interconnect: str | None) -> tuple[float, str] | None:
    """(bytes/s, per `node` or `GPU`) of the network as a source words it; None where it does not say."""
    text = interconnect or ""
    several = _NICS.search(text)
    if several:
        return int(several[1]) * int(several[2]) * GBIT, "node"
    total = _TOTAL.search(text)
    return (int(total[1]) * GBIT, total[2]) if total else None


def _gpu_machine(run: PublishedRun, family: Family) -> Machine:
    """Hosts as the run had them, or as the catalogue has them; the network as the source words it, if it does."""
    per_host = min(run.devices_per_node or family.chips_per_host, run.n_devices)
    hosts = math.ceil(run.n_devices / per_host)
    if per_host == family.chips_per_host:
        made = family.machine((hosts, per_host))
    else:
        whole = family.machine((1, family.chips_per_host))
        network = whole.dcn_bytes_per_s_per_host * per_host / family.chips_per_host
        made = dataclasses.replace(
            whole, name=f"{family.chip.id} {hosts}x{per_host}", shape=(hosts, per_host), chips_per_host=per_host,
            domain_chips=per_host, dcn_bytes_per_s_per_host=network,
        )  # fmt: skip
    said = nic_bytes_per_s(run.interconnect)
    if said is None:
        return made
    network = said[0] * (per_host if said[1] == "GPU" else 1)
    return dataclasses.replace(made, dcn_bytes_per_s_per_host=network)


def _group(links: Links) -> Group:
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
    return dataclasses.replace(_group(links), size=size, bytes_per_s=rate, latency_s=start, network=float(crosses))


def _send(links: Links) -> Group:
    """The links as a message to the next stage uses them."""
    return dataclasses.replace(
        _group(links), size=2, bytes_per_s=links.permute_bytes_per_s, latency_s=links.hop_latency_s
    )


def _gpu_groups(run: PublishedRun, machine: Machine, s: _Sizes) -> dict:
    """Tensor ranks innermost, then experts where they are an axis of their own, context, fsdp, data, stages outermost."""
    domain = machine.domain_chips
    own = s.expert if s.own else 1
    own_inside = own // (run.dcn_ep or 1) if s.own and run.dcn_ep else min(own, max(1, domain // s.tensor))

    def group(size: int, stride: int, outside: int | None = None) -> Group:
        if size <= 1:
            return ALONE
        inside = max(1, size // outside) if outside else max(1, min(size, domain // max(stride, 1)))
        return _group(_gpu_links(machine, inside, math.ceil(size / inside)))

    t, c = s.tensor, s.context
    # context ranks share in storing weights, but only where weights are stored in parts at all
    shards = s.fsdp * c if s.fsdp * own > 1 else 1
    # MaxText shards dense weights over the expert axis as well (configs/base.yml, logical_axis_rules: embed)
    dense_shards = shards * own
    lone_experts = 1 if s.own else s.expert
    fsdp_stride = t * own_inside
    data_stride = t * c * own * s.fsdp
    expert_size = s.expert
    nodes = run.dcn_ep or max(1, math.ceil(expert_size * t / domain)) if expert_size > 1 else 1
    inside = max(1, expert_size // nodes)
    network = _gpu_links(machine, 1, 2)
    neighbours = t * c * own * s.fsdp * s.data     # stages are outermost
    return dict(
        nodes=float(nodes),
        tensor_group=group(t, 1),
        context_group=group(c, t),
        fsdp_group=group(dense_shards, t if s.own else fsdp_stride, _outside(run, s)),
        expert_fsdp_group=group(max(1, shards // lone_experts), fsdp_stride * (lone_experts if not s.own else 1)),
        data_group=group(s.data, data_stride),
        expert_data_group=group(max(1, s.data // (1 if s.own or s.fsdp > 1 else s.expert)), data_stride * lone_experts),
        expert_group=_exchange(_gpu_links(machine, inside, 1) if inside > 1 else network, expert_size, nodes > 1),
        expert_network=_exchange(network, expert_size, nodes > 1),
        send_group=_send(_gpu_links(machine, 2, 1) if neighbours < domain and s.stage > 1 else network),
    )


def _outside(run: PublishedRun, s: _Sizes) -> int | None:
    """Domains that the shards of dense weights span, where the run says so."""
    if run.dcn_fsdp is None:
        return None
    return run.dcn_fsdp * (run.dcn_ep or 1) if s.own else run.dcn_fsdp


@lru_cache(maxsize=4096)
def _gpu_links(machine: Machine, inside: int, outside: int) -> Links:
    first = (Segment(inside, 1, machine.domain_chips),) if inside > 1 else ()
    second = (Segment(outside, 1, max(outside, machine.hosts)),) if outside > 1 else ()
    return rates.links(machine, (first, second))


def _tpu_groups(run: PublishedRun, machine: Machine, s: _Sizes) -> dict:
    """Mesh axes placed on the torus, the network between slices for data first."""
    sizes = {"stage": s.stage, "data": s.data, "fsdp": s.fsdp, "expert": s.expert if s.own else 1,
             "context": s.context, "tensor": s.tensor}  # fmt: skip
    if math.prod(sizes.values()) != machine.devices:
        raise Unpredictable(f"its axes multiply up to {math.prod(sizes.values())}, it has {machine.devices} devices")
    try:
        placed = place(machine, sizes)
    except (InputError, ValueError) as error:
        raise Unpredictable(f"its mesh has no place on {machine.name}: {error}") from error
    return _placed_groups(placed, s)


def _placed_groups(placed: Placement, s: _Sizes) -> dict:
    def group(*axes: str) -> Group:
        links = placed.links(axes)
        return _group(links) if links.size > 1 else ALONE


    expert_axes = ("expert",) if s.own else ("fsdp",)
    experts = placed.links(expert_axes)
    exchange = _exchange(experts, s.expert, experts.crosses_network) if s.expert > 1 else ALONE
    send = _send(placed.links(("stage",))) if s.stage > 1 else ALONE
    own = ("expert",) if s.own else ()
    stored = ("fsdp", "context") if s.fsdp > 1 or (s.own and s.expert > 1) else ()
    fsdp = group(*stored, *own)
    return dict(
        nodes=1.0,
        tensor_group=group("tensor"),
        context_group=group("context"),
        fsdp_group=fsdp,
        expert_fsdp_group=group(*stored) if s.own or s.expert == 1 else dataclasses.replace(
            fsdp, size=max(1, s.fsdp * s.context // s.expert)),
        data_group=group("data"),
        expert_data_group=group("data"),
        expert_group=exchange,
        expert_network=exchange,
        send_group=send,
    )  # fmt: skip
