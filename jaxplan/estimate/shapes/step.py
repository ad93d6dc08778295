"""The step: microbatches through stages, beside the movement of state, as a ledger that adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes import exchange
from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.layer import layer
from jaxplan.estimate.shapes.rates import Rates, matmul_s, stream_s

MOE_LAUNCHES_FORWARD, MOE_LAUNCHES_BACKWARD = 180, 300


@dataclass(frozen=True)
class Step:
    """Seconds by ledger line, each an array over runs; `value` is their sum."""

    ledger: Mapping[str, Number]
    low: Number
    high: Number

    @property
    def value(self) -> Number:
        return sum(self.ledger.values())


def head_s(facts: Facts, rates: Rates) -> tuple[Number, Number]:
    """Matmuls of logits (forward and backward) and the passes of the loss over them, one microbatch."""
    model, layout, chip = facts.model, facts.layout, facts.chip
    columns = model.vocab / layout.tensor
    matmul = matmul_s(chip, rates, layout.tokens, model.embed, columns, np.zeros_like(columns))
    loss = stream_s(chip, rates, layout.tokens * columns * facts.habits.loss_bytes_per_logit)
    return (2 + facts.choices.trained) * matmul, loss


def hidden(compute_s: Number, moved_s: Number, share: Number) -> Number:
    """What of a movement is hidden under compute."""
    return share * np.minimum(compute_s, moved_s)


def step(facts: Facts, rates: Rates) -> Step:
    model, layout, chip, choices, habits = facts.model, facts.layout, facts.chip, facts.choices, facts.habits
    stage, n, repeats = layout.stage, layout.microbatches, layout.repeats
    dense, moe = model.dense_layers / stage, model.all_moe_layers / stage
    layers = dense + moe
    one, mixed = layer(facts, rates, False), layer(facts, rates, True)
    head, loss = head_s(facts, rates)

    def both(part: str, which: str) -> Number:
        return dense * getattr(getattr(one, part), which) + np.where(
            moe > 0, moe * getattr(getattr(mixed, part), which), 0.0
        )

    ledger: dict[str, Number] = {}
    fwd = sum(both(p, "forward") for p in ("matmul", "attention", "memory", "launch"))
    bwd = sum(both(p, "backward") for p in ("matmul", "attention", "memory", "launch"))
    again = sum(both(p, "again") for p in ("matmul", "attention", "memory", "launch"))
    # host
    local = np.maximum(model.experts / layout.expert, 1)
    hosts = np.where(moe > 0, (1 - choices.graphs) * rates.host_s * (1 + local / 64), 0.0)
    wait_f = np.maximum(moe * MOE_LAUNCHES_FORWARD * hosts - (fwd - dense * one.total().forward), 0) * (moe > 0)
    wait_b = np.maximum(moe * MOE_LAUNCHES_BACKWARD * hosts - (bwd - dense * one.total().backward), 0) * (moe > 0)

    # activations
    twice = 2 + ((choices.recompute_mlp + choices.recompute_qkv) >= 1)
    tp = layers * twice * exchange.tensor_s(facts, rates) * (1 - rates.tensor_overlap)
    cp = layers * (3 + choices.recompute_core) * 0.6 * exchange.context_s(facts, rates)
    ep = moe * (2 + choices.recompute_mlp) * exchange.experts_exchange_s(facts, rates) * (1 - rates.expert_overlap)
    fwd_all = fwd + wait_f + (tp + cp + ep) / 3
    bwd_all = bwd + wait_b + again + (tp + cp + ep) * 2 / 3
    # state
    alone = np.where(stage == 1, 1.0, 0.0)
    gathers = np.where(layout.fsdp > 1, exchange.weights_s(facts, rates, 2.0), 0.0)
    scatters = np.where(layout.fsdp > 1, exchange.weights_s(facts, rates, choices.reduce_bytes), 0.0)
    state_f, state_b = gathers, gathers * choices.reshard + scatters
    share = rates.state_overlap
    exposed_f = state_f - hidden(fwd_all + alone * (head + loss) / 3, state_f, share)
    exposed_b = state_b - hidden(bwd_all + alone * (head + loss) * 2 / 3, state_b, share)
    micro = fwd_all + bwd_all + exposed_f + exposed_b
    sends = np.where(stage > 1, 2 * exchange.send_s(facts, rates) * repeats, 0.0) * np.where(habits.overlaps_reduce > 0, .5, 1.)
    whole_head = (head + loss)
    piped = micro + sends
    slack = whole_head * np.where(habits.uneven_stages > 0, .5, 1.0)
    imbalance = np.where(stage > 1, slack, 0.0)
    bubble = np.where(stage > 1, (stage - 1) / repeats * (piped + whole_head / stage), 0.0)
    # data parallel
    gradient = choices.reduce_bytes
    dp = np.where(layout.data > 1, exchange.replicas_s(facts, rates, gradient + 2), 0.0)
    window = np.where(chip.tpu > 0, bwd_all, micro * habits.overlaps_reduce)
    share = np.where((chip.tpu > 0) & (layout.data_group.network > 0), rates.dcn_overlap, share)
    dp = np.maximum(dp - share * window, (1 - share) * dp)
    # optimizer
    experts, rest = exchange.held(facts)
    shards = layout.fsdp * np.where(choices.zero_stage >= 1, layout.data, 1)
    ex_shards = np.maximum(1, np.where(choices.expert_own > 0, shards, shards / layout.expert)) if hasattr(choices, "expert_own") else np.maximum(1, np.where(layout.expert_own > 0, shards, shards / layout.expert))
    per = 2 * (2 * choices.parameter_bytes / 2 + 2 * choices.moment_bytes) + 8
    opt = stream_s(chip, rates, (rest / shards + experts / ex_shards) * per) * choices.trained

    ledger["matmul"] = n * (both("matmul", "forward") + both("matmul", "backward")) + np.where(stage > 1, 0.0, n * head)
    ledger["attention"] = n * (both("attention", "forward") + both("attention", "backward"))
    ledger["memory-bound"] = n * (both("memory", "forward") + both("memory", "backward")) + np.where(stage > 1, 0.0, n * loss)
    ledger["launch"] = n * (both("launch", "forward") + both("launch", "backward")) + n * (wait_f + wait_b) + rates.fixed_s
    ledger["recompute"] = n * again
    ledger["tensor"] = n * tp
    ledger["context"] = n * cp
    ledger["expert"] = n * ep
    ledger["fsdp"] = n * (exposed_f + exposed_b)
    ledger["send"] = n * sends
    ledger["imbalance"] = n * imbalance
    ledger["bubble"] = bubble
    ledger["data"] = dp
    ledger["optimizer"] = opt
    total = sum(ledger.values())
    offload = 2 * layout.tokens * choices.offloaded * model.layers * n / (chip.host_bytes_per_s * rates.host_link)
    hosts_n = np.maximum(layout.devices / 8, 1)
    ledger["stragglers"] = total * rates.jitter * np.sqrt(2 * np.log(hosts_n))
    total = total + ledger["stragglers"]
    ledger["host copies"] = np.maximum(offload - total, 0.0)
    total = total + ledger["host copies"]
    return Step(ledger, total, total)
