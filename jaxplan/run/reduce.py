"""A smaller model of the same structure: fewer equal layers, then narrower ones. No JAX here.

Same structure: the same kinds of layers, norms, positions and activation, the same mixture, the same ratio of query to
key-value heads as far as the axes allow; what an axis divides stays divisible by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jaxplan.plan.plan import divisors
from jaxplan.plan.remat import policy
from jaxplan.plan.sharding import STORED_OVER
from jaxplan.workload.shape import ExpertShape, LatentAttentionShape, ModelShape

FLOORS = {"embed": 64, "mlp": 64, "vocab": 256, "head_dim": 8}   # chosen: smaller ones save nothing any more


@dataclass(frozen=True)
class Needs:
    """What a mesh and the decisions beside it ask of a model's sizes.

    Attributes:
        layers: equal layers come in multiples of it; `dense_layers`: those that lead a mixture's.
        stored: `embed` and ranks do. tensor: heads, hidden units and vocabulary do. kv_heads: key-value heads do.
        group: query heads of one key-value head do. expert: experts do.
        one_tensor: there are as many key-value heads as `tensor` has devices (a `group` axis asks for it).
        widths: whether heads may become narrower; kernels of accelerators want the widths that they know.
        vocab: whether the vocabulary may become smaller: given token ids must stay in it.
    """

    layers: int
    dense_layers: int
    stored: int
    tensor: int
    kv_heads: int
    group: int
    expert: int
    one_tensor: bool
    widths: bool = True
    vocab: bool = True

    @classmethod
    def of(
        cls, sizes: Mapping[str, int], repeats: int, remat: str, zero1: bool, ulysses: bool, **more: bool
    ) -> Needs:
        """Of a mesh's sizes by axis."""

        def size(axis: str) -> int:
            return sizes.get(axis, 1)

        kept = policy(remat).group
        return cls(
            layers=size("stage") * repeats * kept,
            dense_layers=kept,
            stored=math.prod(size(axis) for axis in STORED_OVER) * (size("data") if zero1 else 1),
            tensor=size("tensor") * size("group"),
            kv_heads=size("tensor") * (size("context") if ulysses else 1),
            group=size("group"),
            expert=size("expert"),
            one_tensor=size("group") > 1,
            **more,
        )


def smaller(shape: ModelShape, needs: Needs) -> Iterator[tuple[ModelShape, int]]:
    """Models of the same structure, each smaller than the one before, the first as large as the mesh allows.

    Layers are halved until there are as few as the mesh takes (at least two equal ones), then widths are.

    Yields:
        The model, and by what its widths were divided (1 while layers go).
    """
    shape = _grouped(shape, needs)
    before = None
    for halvings in range(shape.layers.bit_length()):
        model = _layers(shape, needs, 2**halvings)
        if model != before:
            yield model, 1
        before = model
    assert before is not None
    fewest = before
    for halvings in range(1, 64):
        model = _narrow(fewest, needs, 2**halvings)
        if model == before:
            return
        yield model, 2**halvings
        before = model


def divided(value: int, by: int, multiple: int, floor: int = 1) -> int:
    """`value / by` in whole multiples, at least `floor`, never more than `value`."""
    target = max(value // by, floor, 1)
    return min(value, multiple * math.ceil(target / multiple))


def _grouped(shape: ModelShape, needs: Needs) -> ModelShape:
    """With as many key-value heads as `tensor` has devices, where a `group` axis asks for it."""
    if not needs.one_tensor or shape.kv_heads == needs.kv_heads:
        return shape
    return replace(shape, kv_heads=needs.kv_heads, heads=needs.kv_heads * (shape.heads // shape.kv_heads))


def _layers(shape: ModelShape, needs: Needs, by: int) -> ModelShape:
    unit = needs.layers
    least = unit * math.ceil(2 / unit)
    repeated = max(shape.repeated_layers // by // unit * unit, min(least, shape.repeated_layers))
    dense, experts = 0, shape.experts
    if experts is not None and experts.first_dense_layers:
        unit = needs.dense_layers
        dense = max(experts.first_dense_layers // by // unit * unit, unit)
        experts = replace(experts, first_dense_layers=dense)
    return replace(shape, layers=repeated + dense, experts=experts)


def _narrow(shape: ModelShape, needs: Needs, by: int) -> ModelShape:
    ratio = shape.heads // shape.kv_heads
    kv_heads = shape.kv_heads if needs.one_tensor else divided(shape.kv_heads, by, needs.kv_heads, 2)
    while kv_heads * ratio % needs.tensor:
        kv_heads += needs.kv_heads
    # queries of a key-value head are the last to go: a ratio of 2 is as grouped as one of 8
    kept = [d for d in divisors(ratio) if d % needs.group == 0 and kv_heads * d % needs.tensor == 0]
    ratio = min((d for d in kept if d >= min(ratio, max(2, ratio // by))), default=ratio)
    width = divided(shape.head_dim, by, 2, FLOORS["head_dim"]) if needs.widths else shape.head_dim
    return replace(
        shape,
        embed=divided(shape.embed, by, needs.stored, FLOORS["embed"]),
        mlp=divided(shape.mlp, by, needs.tensor, FLOORS["mlp"]),
        vocab=divided(shape.vocab, by, needs.tensor, FLOORS["vocab"]) if needs.vocab else shape.vocab,
        kv_heads=kv_heads,
        heads=kv_heads * ratio,
        head_dim=width,
        experts=None if shape.experts is None else _experts(shape.experts, needs, by),
        latent_attention=None if shape.latent_attention is None else _latent(shape.latent_attention, needs, by),
    )


def _experts(experts: ExpertShape, needs: Needs, by: int) -> ExpertShape:
    count = divided(experts.experts, by, math.lcm(needs.expert, experts.choice_groups), 4)
    reach = experts.chosen_groups * count // experts.choice_groups
    return replace(
        experts,
        experts=count,
        top_k=min(experts.top_k, max(1, count // 2), reach),
        mlp=divided(experts.mlp, by, needs.tensor, FLOORS["mlp"]),
        shared_mlp=divided(experts.shared_mlp, by, needs.tensor, FLOORS["mlp"]) if experts.shared_mlp else 0,
    )


def _latent(latent: LatentAttentionShape, needs: Needs, by: int) -> LatentAttentionShape:
    def rank(value: int) -> int:
        return divided(value, by, needs.stored, FLOORS["embed"]) if value else 0

    if not needs.widths:
        return replace(latent, query_rank=rank(latent.query_rank), kv_rank=rank(latent.kv_rank))
    floor = FLOORS["head_dim"]
    return LatentAttentionShape(
        query_rank=rank(latent.query_rank),
        kv_rank=rank(latent.kv_rank),
        rope_head_dim=divided(latent.rope_head_dim, by, 2, floor),
        nope_head_dim=divided(latent.nope_head_dim, by, 2, floor),
        value_head_dim=divided(latent.value_head_dim, by, 2, floor),
    )
