"""The step: microbatches through stages, gradients over replicas, the update; as a ledger that adds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes import exchange
from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.rates import Rates, stream_s
from jaxplan.estimate.shapes.stage import WEIGHT_BYTES, Microbatch, microbatch

HOST_DEVICES = 8                # that one host's jitter holds up together
GRADIENT_BYTES = 4.0            # read by the update


@dataclass(frozen=True)
class Step:
    """Seconds of a step.

    Attributes:
        ledger: by line, each an array over runs; they add up to `value`.
        low: all that can be hidden is, and matmuls run at the best rate that was measured.
        high: nothing is hidden.
    """

    ledger: Mapping[str, Number]
    low: Number
    high: Number

    @property
    def value(self) -> Number:
        return sum(self.ledger.values())


def step(facts: Facts, rates: Rates) -> Step:
    """The calibrated step with its bounds."""
    ledger = ledger_of(facts, rates)
    value = sum(ledger.values())
    low = sum(ledger_of(facts, _all_hidden(rates)).values())
    high = sum(ledger_of(facts, _none_hidden(rates)).values())
    return Step(ledger, np.minimum(low, value), np.maximum(high, value))


OVERLAPS = ("state_overlap", "tensor_overlap", "expert_overlap", "dcn_overlap")


def _all_hidden(rates: Rates) -> Rates:
    return dataclasses.replace(rates, **dict.fromkeys((*OVERLAPS, "sustained"), 1.0))


def _none_hidden(rates: Rates) -> Rates:
    return dataclasses.replace(rates, **dict.fromkeys(OVERLAPS, 0.0))


def ledger_of(facts: Facts, rates: Rates) -> dict[str, Number]:
    """Seconds by line."""
    layout = facts.layout
    one = microbatch(facts, rates)
    lines = {name: layout.microbatches * part for name, part in one.lines.items()}
    matmul, loss = one.head
    whole = np.where(layout.stage == 1, layout.microbatches, 0.0)
    lines["matmul"] = lines["matmul"] + whole * matmul
    lines["memory-bound"] = lines["memory-bound"] + whole * loss
    lines |= _pipeline(facts, rates, one)
    lines["data"] = _replicas(facts, rates, one)
    lines["optimizer"] = _update(facts, rates)
    lines["fixed"] = rates.fixed_s
    total = sum(lines.values())
    hosts = np.maximum(layout.devices / HOST_DEVICES, 1)
    lines["stragglers"] = total * rates.jitter * np.sqrt(2 * np.log(hosts))     # expected maximum of n normal variables
    total = total + lines["stragglers"]
    lines["host copies"] = np.maximum(_offload(facts, rates) - total, 0.0)
    return lines


def _pipeline(facts: Facts, rates: Rates, one: Microbatch) -> dict[str, Number]:
    """Sends, the wait of all stages for the last one, which has the loss, and the bubble.

    (p - 1) / v microbatches of idle time (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). Stages of uneven
    layers take up about half of the loss's weight.
    """
    layout, habits = facts.layout, facts.habits
    piped = layout.stage > 1
    beside = np.where(habits.overlaps_send > 0, 0.5, 1.0)     # sends of one microbatch beside compute of another
    sends = 2 * exchange.send_s(facts, rates) * layout.repeats * beside
    head = sum(one.head)
    slack = head * np.where(habits.uneven_stages > 0, 0.5, 1.0)
    bubble = (layout.stage - 1) / layout.repeats * (one.total + sends + head / layout.stage)
    found = {"send": layout.microbatches * sends, "imbalance": layout.microbatches * slack, "bubble": bubble}
    return {name: np.where(piped, value, 0.0) for name, value in found.items()}


def _replicas(facts: Facts, rates: Rates, one: Microbatch) -> Number:
    """Gradients over replicas: hidden under the last microbatch's compute, or, over DCN, under its backward pass."""
    layout, chip = facts.layout, facts.chip
    moved = exchange.replicas_s(facts, rates, facts.choices.reduce_bytes + WEIGHT_BYTES)
    tpu = chip.tpu > 0
    window = np.where(tpu, one.backward, one.total * facts.habits.overlaps_reduce)
    share = np.where(tpu & (layout.data_group.network > 0), rates.dcn_overlap, rates.state_overlap)
    exposed = np.maximum(moved - share * window, (1 - share) * moved)
    return np.where(layout.data > 1, exposed, 0.0)


def _update(facts: Facts, rates: Rates) -> Number:
    """The optimizer's update: gradients read, master weights and two moments read and written, weights written."""
    layout, choices = facts.layout, facts.choices
    experts, rest = exchange.held(facts)
    shards = layout.fsdp * np.where(choices.zero_stage >= 1, layout.data, 1)
    expert_shards = exchange.expert_shards(facts, shards)
    state = 2 * (choices.parameter_bytes + 2 * choices.moment_bytes)
    nbytes = state + GRADIENT_BYTES + GRADIENT_BYTES
    return choices.trained * stream_s(facts.chip, rates, (rest / shards + experts / expert_shards) * nbytes)


def _offload(facts: Facts, rates: Rates) -> Number:
    """Activations to the host and back, all layers and microbatches: a floor of the step."""
    layout = facts.layout
    moved = 2 * layout.tokens * facts.choices.offloaded * facts.model.layers * layout.microbatches
    return moved / (facts.chip.host_bytes_per_s * rates.host_link)
