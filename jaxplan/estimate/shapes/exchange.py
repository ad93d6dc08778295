"""What the devices of a run send each other: within a layer, and of its state."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.shapes.experts import chosen
from jaxplan.estimate.shapes.facts import Facts, Group, Number
from jaxplan.estimate.shapes.rates import ELEMENT_BYTES, Rates


def gather_s(group: Group, rates: Rates, nbytes: Number) -> Number:
    """All-gather to, or reduce-scatter from, `nbytes` in all: (n - 1) / n of them arrive."""
    return _moved_s(group, rates, (group.size - 1) / group.size * nbytes, group.bytes_per_s, group.latency_s)


def all_reduce_s(group: Group, rates: Rates, nbytes: Number) -> Number:
    """All-reduce of `nbytes`."""
    moved = 2 * (group.size - 1) / group.size * nbytes
    return _moved_s(group, rates, moved, group.all_reduce_bytes_per_s, group.all_reduce_latency_s)


def _moved_s(group: Group, rates: Rates, nbytes: Number, bytes_per_s: Number, latency_s: Number) -> Number:
    """start + x + min(x, start), the last with two protocols: `jaxplan.machine.collectives`."""
    start = rates.latency * latency_s
    moving = nbytes / (bytes_per_s * np.where(group.network > 0, rates.network, rates.link))
    return np.where(group.size > 1, start + moving + group.two_protocols * np.minimum(start, moving), 0.0)


def tensor_s(facts: Facts, rates: Rates) -> Number:
    """Tensor parallelism, one forward pass of one layer: two all-reduces (Shoeybi et al. 2019, arXiv:1909.08053,
    figure 4), or the all-gathers and reduce-scatters that they are made of where activations between blocks are
    sharded (Korthikanti et al. 2022, arXiv:2205.05198, figure 5)."""
    layout = facts.layout
    activations = layout.tokens * facts.model.embed * ELEMENT_BYTES
    whole = 2 * all_reduce_s(layout.tensor_group, rates, activations)
    sharded = 4 * gather_s(layout.tensor_group, rates, activations)
    return np.where(facts.choices.sequence_parallel > 0, sharded, whole) / rates.tensor_link


def context_s(facts: Facts, rates: Rates) -> Number:
    """Keys and values of the whole sequence, one forward pass of one layer."""
    model, layout = facts.model, facts.layout
    heads = model.kv_heads / np.maximum(1, np.minimum(layout.tensor, model.kv_heads))
    nbytes = layout.micro_batch * layout.seq * heads * (model.qk_dim + model.v_dim) * ELEMENT_BYTES
    return gather_s(layout.context_group, rates, nbytes)


def experts_exchange_s(facts: Facts, rates: Rates) -> Number:
    """Dispatch and combine of one layer, one forward pass: two all-to-alls of the tokens' copies.

    Of a group over several domains, (nodes - 1) / nodes of the bytes leave the domain; where a dispatcher sends a token
    to each node once, k choices among the nodes reach nodes (1 - (1 - 1 / nodes)^k) of them (DeepSeek-AI, DeepEP).
    """
    layout, choices, model = facts.layout, facts.choices, facts.model
    k, nodes = np.maximum(model.top_k, 1), layout.nodes
    sent = chosen(facts) * model.embed * ELEMENT_BYTES / layout.tensor
    inside = sent * (layout.expert - 1) / layout.expert
    reached = np.minimum(1.0, nodes * (1 - (1 - 1 / nodes) ** k) / k)
    across = sent * (nodes - 1) / nodes * np.where(choices.once_a_node > 0, reached, 1.0)
    inner = inside / (layout.expert_group.bytes_per_s * rates.link * rates.exchange)
    outer = across / (layout.expert_network.bytes_per_s * rates.network * rates.exchange)
    start = rates.latency * layout.expert_group.latency_s
    return np.where(layout.expert > 1, 2 * (np.maximum(inner, outer) + start), 0.0)


def held(facts: Facts) -> tuple[Number, Number]:
    """Parameters that one device computes with: (experts, the rest), of its stage, before fsdp divides them."""
    model, layout = facts.model, facts.layout
    share = layout.tensor * layout.stage
    experts = model.all_moe_layers * model.experts_parameters
    return experts / share / layout.expert, (model.parameters - experts) / share


def expert_shards(facts: Facts, shards: Number) -> Number:
    """Parts that one device's experts are divided into where dense weights are in `shards`: ranks that hold other
    experts take no part."""
    layout = facts.layout
    return np.maximum(1, np.where(layout.expert_own > 0, shards, shards / layout.expert))


def weights_s(facts: Facts, rates: Rates, bytes_each: Number) -> Number:
    """All weights of a stage gathered, or their gradients scattered, over fsdp ranks once, layer by layer."""
    layout, model = facts.layout, facts.model
    experts, rest = held(facts)
    layers, moe = model.all_layers / layout.stage, np.maximum(model.all_moe_layers, 1) / layout.stage
    moved = layers * gather_s(layout.fsdp_group, rates, rest / layers * bytes_each)
    of_experts = moe * gather_s(layout.expert_fsdp_group, rates, experts / moe * bytes_each)
    return moved + np.where(experts > 0, of_experts, 0.0)


def replicas_s(facts: Facts, rates: Rates, bytes_each: Number) -> Number:
    """Gradients reduced and weights gathered over data ranks, once a step.

    Args:
        bytes_each: of a gradient on its way there and of a weight on its way back, together.
    """
    layout = facts.layout
    experts, rest = held(facts)
    moved = gather_s(layout.data_group, rates, rest * bytes_each / layout.fsdp)
    of_experts = experts / expert_shards(facts, layout.fsdp)
    return moved + gather_s(layout.expert_data_group, rates, of_experts * bytes_each)


def send_s(facts: Facts, rates: Rates) -> Number:
    """One microbatch's activations to the next stage, each tensor rank its part (Narayanan et al. 2021,
    arXiv:2104.04473, section 4.1)."""
    layout = facts.layout
    nbytes = layout.tokens * facts.model.embed * ELEMENT_BYTES / layout.tensor
    reached = layout.send_group.bytes_per_s * np.where(layout.send_group.network > 0, rates.network, rates.link)
    return np.where(layout.stage > 1, nbytes / reached + rates.latency * layout.send_group.latency_s, 0.0)
