"""One microbatch on one stage: what its layers compute and what they exchange, with the movement of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxplan.estimate.shapes import exchange
from jaxplan.estimate.shapes.facts import Facts, Number
from jaxplan.estimate.shapes.layer import Layer, Passes, layer
from jaxplan.estimate.shapes.rates import Rates, matmul_s, stream_s

WEIGHT_BYTES = 2.0              # gathered in 16 bits
CONTEXT_EXPOSED = 0.6           # of keys and values: the rest hides under the blocks of attention that are there
# Chosen: launches of one eager layer of experts (router, permutation, grouped matmuls), forward and backward, and local
# experts that double them. Only their product with the calibrated `host_s` counts.
LAUNCHES_FORWARD, LAUNCHES_BACKWARD, LAUNCHES_EXPERTS = 180, 300, 64


@dataclass(frozen=True)
class Microbatch:
    """Seconds of one microbatch on one stage, by ledger line.

    Attributes:
        lines: matmul, attention, memory-bound, launch, recompute, tensor, context, expert, fsdp: together `total`.
        forward, backward: compute and exposed activations, without `fsdp`.
        head: the loss's matmuls and passes, which only the last stage has.
    """

    lines: dict[str, Number]
    forward: Number
    backward: Number
    head: tuple[Number, Number]

    @property
    def total(self) -> Number:
        return sum(self.lines.values())


def head_s(facts: Facts, rates: Rates) -> tuple[Number, Number]:
    """Matmuls of logits, forward and backward, and the passes of the loss over them."""
    model, layout, chip = facts.model, facts.layout, facts.chip
    columns = model.vocab / layout.tensor
    matmul = matmul_s(chip, rates, layout.tokens, model.embed, columns, np.zeros_like(columns))
    loss = stream_s(chip, rates, layout.tokens * columns * facts.habits.loss_bytes_per_logit)
    return (2 + facts.choices.trained) * matmul, loss


def host_waits(facts: Facts, rates: Rates, mixed: Layer) -> Passes:
    """How much longer the host takes to launch a layer of experts than the device takes to run it."""
    local = np.maximum(facts.model.experts / facts.layout.expert, 1)
    launch = (1 - facts.choices.graphs) * rates.host_s * (1 + local / LAUNCHES_EXPERTS)
    busy = mixed.total()
    forward = np.maximum(LAUNCHES_FORWARD * launch - busy.forward, 0)
    backward = np.maximum(LAUNCHES_BACKWARD * launch - busy.backward, 0)
    return Passes(forward, backward, 0.0)


def microbatch(facts: Facts, rates: Rates) -> Microbatch:
    model, layout = facts.model, facts.layout
    dense, moe = model.dense_layers / layout.stage, model.all_moe_layers / layout.stage
    plain, mixed = layer(facts, rates, experts=False), layer(facts, rates, experts=True)

    def of(part: Callable[[Layer], Passes]) -> Passes:
        one, other = part(plain), part(mixed)
        return Passes(
            dense * one.forward + _where(moe, other.forward),
            dense * one.backward + _where(moe, other.backward),
            dense * one.again + _where(moe, other.again),
        )

    parts = {
        "matmul": of(lambda found: found.matmul),
        "attention": of(lambda found: found.attention),
        "memory-bound": of(lambda found: found.memory),
        "launch": of(lambda found: found.launch),
    }
    waits = host_waits(facts, rates, mixed)
    head = head_s(facts, rates)
    moved = _activations(facts, rates, dense + moe, moe)
    waited_forward, waited_backward = _where(moe, waits.forward), _where(moe, waits.backward)
    again = sum(part.again for part in parts.values())
    forward = sum(part.forward for part in parts.values()) + waited_forward + sum(moved.values()) / 3
    backward = sum(part.backward for part in parts.values()) + waited_backward + again + sum(moved.values()) * 2 / 3
    lines = {name: part.forward + part.backward for name, part in parts.items()}
    lines["launch"] = lines["launch"] + waited_forward + waited_backward
    lines["recompute"] = again
    lines |= moved
    alone = np.where(layout.stage == 1, sum(head), 0.0)    # other schedules have the loss in the last stage only
    lines["fsdp"] = _exposed_state(facts, rates, forward + alone / 3, backward + alone * 2 / 3)
    return Microbatch(lines, forward, backward, head)


def _where(count: Number, value: Number) -> Number:
    return np.where(count > 0, count * value, 0.0)


def _activations(facts: Facts, rates: Rates, layers: Number, moe: Number) -> dict[str, Number]:
    """Exposed exchange of activations in forward, backward and repeated passes."""
    choices = facts.choices
    repeats = 2 + ((choices.recompute_mlp + choices.recompute_qkv) >= 1)
    tensor = layers * repeats * exchange.tensor_s(facts, rates) * (1 - rates.tensor_overlap)
    context = layers * (3 + choices.recompute_core) * CONTEXT_EXPOSED * exchange.context_s(facts, rates)
    expert = moe * (2 + choices.recompute_mlp) * exchange.experts_exchange_s(facts, rates) * (1 - rates.expert_overlap)
    return {"tensor": tensor, "context": context, "expert": expert}


def _exposed_state(facts: Facts, rates: Rates, forward_s: Number, backward_s: Number) -> Number:
    """Gathers of weights and scatters of gradients that are not hidden under one microbatch's compute."""
    layout, choices = facts.layout, facts.choices
    gathers = exchange.weights_s(facts, rates, WEIGHT_BYTES)
    back = gathers * choices.reshard + exchange.weights_s(facts, rates, choices.reduce_bytes)
    share = rates.state_overlap
    exposed = gathers - hidden(forward_s, gathers, share) + back - hidden(backward_s, back, share)
    return np.where(layout.fsdp_group.size > 1, exposed, 0.0)


def hidden(compute_s: Number, moved_s: Number, share: Number) -> Number:
    """What of a movement is hidden under compute: a share of what fits."""
    return share * np.minimum(compute_s, moved_s)
