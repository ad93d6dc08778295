"""What is known of runs before they run: model, layout, chip, choices, habits of the framework.

Every field is a number or, after `stack`, a float array over runs: the formulas of this package take both.

Legend: layers L, embed D, mlp F, heads N, kv heads K, vocab V, tokens of one microbatch on one device M.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Number = Any    # a float, or a float array over runs
T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder.

    Attributes:
        dense_layers, moe_layers: they add up to `layers`.
        mtp_layers: multi-token-prediction layers that are trained (DeepSeek-V3, arXiv:2412.19437, section 2.2).
        mlp_matrices: 3 with a gate, else 2.
        qk_dim, v_dim: widths of a head's keys and values.
        query_rank, kv_rank, rope_dim: of latent attention; 0 where there is none.
        expert_mlp: width of one expert; shared_mlp: of all that every token visits, together.
        window: tokens that windowed layers attend to; windowed: their share of the layers.
    """

    layers: Number
    dense_layers: Number
    moe_layers: Number
    mtp_layers: Number
    embed: Number
    mlp: Number
    mlp_matrices: Number
    heads: Number
    kv_heads: Number
    qk_dim: Number
    v_dim: Number
    query_rank: Number
    kv_rank: Number
    rope_dim: Number
    vocab: Number
    tied: Number
    experts: Number
    top_k: Number
    expert_mlp: Number
    shared_mlp: Number
    window: Number
    windowed: Number

    @property
    def query_width(self) -> Number:
        return self.heads * self.qk_dim

    @property
    def latent(self) -> Number:
        """1 where attention is latent (DeepSeek-V2, arXiv:2405.04434, section 2.1), else 0."""
        return np.sign(self.kv_rank)

    @property
    def kv_width(self) -> Number:
        """Of the keys and values of one token, all heads."""
        plain = self.kv_heads * (self.qk_dim + self.v_dim)
        return np.where(self.kv_rank > 0, self.heads * (self.qk_dim + self.v_dim), plain)

    @property
    def attention_parameters(self) -> Number:
        """Of one layer."""
        d, n = self.embed, self.heads
        plain = d * (n * self.qk_dim + self.kv_heads * (self.qk_dim + self.v_dim))
        queries = np.where(
            self.query_rank > 0, d * self.query_rank + self.query_rank * n * self.qk_dim, d * n * self.qk_dim
        )
        nope = self.qk_dim - self.rope_dim
        latent = queries + d * (self.kv_rank + self.rope_dim) + self.kv_rank * n * (nope + self.v_dim)
        return np.where(self.kv_rank > 0, latent, plain) + n * self.v_dim * d

    @property
    def dense_mlp_parameters(self) -> Number:
        return self.mlp_matrices * self.embed * self.mlp

    @property
    def experts_parameters(self) -> Number:
        """All routed experts of one layer."""
        return self.mlp_matrices * self.embed * self.expert_mlp * self.experts

    @property
    def shared_parameters(self) -> Number:
        """Shared experts and router of one layer."""
        return self.embed * (self.mlp_matrices * self.shared_mlp + self.experts)

    @property
    def embedding_parameters(self) -> Number:
        return self.vocab * self.embed * (2 - self.tied)

    @property
    def all_moe_layers(self) -> Number:
        """With those of multi-token prediction, which are of the last layers' kind."""
        return self.moe_layers + np.where(self.moe_layers > 0, self.mtp_layers, 0)

    @property
    def all_layers(self) -> Number:
        return self.layers + self.mtp_layers

    @property
    def parameters(self) -> Number:
        """All of them, less norms and biases (under 0.1% in every model that is listed)."""
        return (
            self.all_layers * self.attention_parameters
            + self.dense_layers * self.dense_mlp_parameters
            + self.all_moe_layers * (self.experts_parameters + self.shared_parameters)
            + self.embedding_parameters
        )

    def pairs(self, seq: Number, causal: bool = True) -> Number:
        """Keys that a query attends to, on average over queries and layers."""
        full = seq / 2 if causal else seq
        return (1 - self.windowed) * full + self.windowed * np.minimum(self.window, full)


@dataclass(frozen=True)
class Group:
    """The links of one group of devices, at the data sheet's rate.

    Attributes:
        size: devices in the group.
        bytes_per_s: into one device, in all-gathers and reduce-scatters.
        network: 1 where the network (or DCN) bounds it, 0 where links inside a domain or torus do.
        latency_s: of one pass.
        all_reduce_bytes_per_s, all_reduce_latency_s: of an all-reduce, which moves twice as much.
        two_protocols: 1 where large messages pay the start twice (`jaxplan.machine.collectives`).
    """

    size: Number
    bytes_per_s: Number
    network: Number
    latency_s: Number
    all_reduce_bytes_per_s: Number
    all_reduce_latency_s: Number
    two_protocols: Number


@dataclass(frozen=True)
class Layout:
    """How a run is spread.

    Attributes:
        data: ranks that hold whole parameters; fsdp: degree of parameter sharding (context ranks excluded).
        repeats: virtual stages of one device (interleaved schedules).
        expert_own: 1 where the expert axis is an axis of its own that also splits the batch (MaxText), 0 where experts
            lie over data or fsdp ranks (Megatron, torchtitan).
        micro_batch: sequences in one forward pass of one data-parallel shard.
        microbatches: of one step.
        nodes: domains that a group of experts spans.
        fsdp_group, data_group: of dense weights; `expert_...`: of experts' weights.
        expert_group, expert_network: links of all-to-alls inside a domain, and from it.
    """

    devices: Number
    data: Number
    fsdp: Number
    tensor: Number
    context: Number
    stage: Number
    repeats: Number
    expert: Number
    expert_own: Number
    micro_batch: Number
    microbatches: Number
    seq: Number
    nodes: Number
    tensor_group: Group
    context_group: Group
    fsdp_group: Group
    expert_fsdp_group: Group
    data_group: Group
    expert_data_group: Group
    expert_group: Group
    expert_network: Group
    send_group: Group

    @property
    def tokens(self) -> Number:
        """Of one microbatch on one device."""
        return self.micro_batch * self.seq / self.context


@dataclass(frozen=True)
class Chip:
    """One device: `tpu` is 1 or 0; `cores` are SMs or compute units, `tile` the edge of a TPU's systolic array."""

    tpu: Number
    flops_per_s: Number
    narrow_flops_per_s: Number
    hbm_bytes_per_s: Number
    host_bytes_per_s: Number
    cores: Number
    tile: Number
    capacity_bytes: Number


@dataclass(frozen=True)
class Choices:
    """What a run does with its program.

    Attributes:
        recompute_mlp, recompute_qkv, recompute_out, recompute_core, recompute_rest: the share of the forward pass's
            feed-forward, query-key-value and output projections, attention core and memory-bound operations that the
            backward pass does again.
        offloaded: activation bytes per token and layer that go to the host and back.
        narrow: 1 where layers' matmuls run in 8 bits or fewer.
        capacity: work of experts over that of the tokens that choose them.
        one_hot: 1 where tokens are dispatched by one-hot matmuls.
        grouped: 1 where experts are a grouped matmul of uneven sizes.
        once_a_node: 1 where a token crosses the network once for all its experts on a node (DeepEP).
        ragged: 1 where all-to-alls have parts of uneven sizes.
        trained: 1, or 0 where weights are frozen (LoRA).
        zero_stage: 0 to 3: nothing, optimizer state, gradients, weights are sharded over data ranks.
        reshard: 1 where weights are gathered again for the backward pass.
        sequence_parallel: 1 where activations between blocks are sharded over tensor ranks.
        compiled: 1 where pointwise operators are fused by a compiler.
        graphs: share of the host's launches that captured graphs spare.
        tensor_overlap, expert_overlap: 1 where tensor ranks' exchange and all-to-alls are scheduled beside compute.
        context_balanced: 1 where context ranks have equal parts of a causal mask.
        parameter_bytes, moment_bytes, reduce_bytes: of a stored weight, of one moment, of a gradient on its way.
    """

    recompute_mlp: Number
    recompute_qkv: Number
    recompute_out: Number
    recompute_core: Number
    recompute_rest: Number
    offloaded: Number
    narrow: Number
    capacity: Number
    one_hot: Number
    grouped: Number
    once_a_node: Number
    ragged: Number
    trained: Number
    zero_stage: Number
    reshard: Number
    sequence_parallel: Number
    compiled: Number
    graphs: Number
    tensor_overlap: Number
    expert_overlap: Number
    context_balanced: Number
    parameter_bytes: Number
    moment_bytes: Number
    reduce_bytes: Number


@dataclass(frozen=True)
class Habits:
    """What the framework does everywhere, from its profile (`profiling/frameworks`).

    Attributes:
        fused_attention, causal_attention: 1 where scores never reach memory, and where masked ones are not computed.
        loss_bytes_per_logit: moved by the loss, forward and backward.
        kernels_per_layer: launched in a forward pass of a layer.
        overlaps_reduce, overlaps_send: 1 where gradients over replicas and messages between stages run beside compute.
        uneven_stages: 1 where the stages of embedding and loss have fewer layers.
    """

    fused_attention: Number
    causal_attention: Number
    loss_bytes_per_logit: Number
    kernels_per_layer: Number
    overlaps_reduce: Number
    overlaps_send: Number
    uneven_stages: Number


@dataclass(frozen=True)
class Facts:
    model: Model
    layout: Layout
    chip: Chip
    choices: Choices
    habits: Habits


def stack(records: Sequence[T]) -> T:
    """Records of one class as one record of that class whose fields are float arrays over them."""
    first = records[0]
    values = {}
    for field in dataclasses.fields(first):    # type: ignore[arg-type]
        column = [getattr(record, field.name) for record in records]
        values[field.name] = stack(column) if dataclasses.is_dataclass(column[0]) else np.array(column, dtype=float)
    return type(first)(**values)
