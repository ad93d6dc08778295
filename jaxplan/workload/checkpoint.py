"""Rematerialization policies as JAX executes them: a loop over layers whose blocks are checkpointed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxplan.errors import InputError
from jaxplan.plan.remat import BLOCK_INPUT, POLICIES, ROUTE, Policy
from jaxplan.workload.host import DEVICE, HOST
from jaxplan.workload.shape import ModelShape
from jaxplan.workload.weights import block_sizes, stacks

Keep = Callable[..., Any]
Carry = Any
Layer = Any
Step = Callable[[Carry, Layer], tuple[Carry, Any]]


def checkpoint_policy(name: str, shape: ModelShape, on_mesh: bool) -> Keep | None:
    """What the blocks' checkpoint keeps under the policy of that name; None: no checkpoint.

    Of a policy of groups: what is kept of a group's blocks once the group runs again.
    """
    policy = POLICIES[name]
    if policy.saved is None:
        return _all_but_weights(_weight_shapes(shape)) if on_mesh else None
    # scores that are computed again may differ in their last bit, and what a router chooses by them with them
    saved = sorted({*policy.saved, *policy.inside, ROUTE})
    if not policy.offloaded:
        return jax.checkpoint_policies.save_only_these_names(*saved)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=sorted(policy.offloaded),
        offload_src=DEVICE,
        offload_dst=HOST,
    )


def scan_layers(step: Step, name: str, shape: ModelShape, on_mesh: bool) -> Step:
    """A loop over stacked layers under the policy of that name: `jax.lax.scan` of `step`, blocks checkpointed.

    A policy of groups is a loop over groups of a loop over a group's layers. The loops keep XLA from merging what runs
    again with what has run, so that checkpoints need no barriers (`prevent_cse`).

    Args:
        step: (activations, one layer's weights) to (activations, whatever is stacked).
        shape: the model, whose weights' shapes `none` must know.
        on_mesh: weights are gathered, and `none` must not keep them.

    Returns:
        (activations, weights with a leading dim of layers) to (activations, what was stacked). It raises InputError
        where a policy's groups do not divide the layers.
    """
    policy = POLICIES[name]
    keep = checkpoint_policy(name, shape, on_mesh)
    if BLOCK_INPUT in policy.offloaded:
        step = _input_tagged(step)
    if keep is not None:
        step = jax.checkpoint(step, policy=keep, prevent_cse=False)
    if policy.group == 1:
        return lambda carry, weights: jax.lax.scan(step, carry, weights)
    return partial(_in_groups, step, policy)


def _in_groups(step: Step, policy: Policy, carry: Carry, weights: Layer) -> tuple[Carry, Any]:
    layers = jax.tree.leaves(weights)[0].shape[0]
    if layers % policy.group:
        raise InputError(f"remat {policy.name} of {layers} layers", f"a multiple of {policy.group} layers")

    def group(carry: Carry, weights: Layer) -> tuple[Carry, Any]:
        return jax.lax.scan(step, carry, weights)

    groups = jax.tree.map(lambda w: w.reshape(layers // policy.group, policy.group, *w.shape[1:]), weights)
    keep = jax.checkpoint_policies.save_only_these_names(ROUTE)
    carry, stacked = jax.lax.scan(jax.checkpoint(group, policy=keep, prevent_cse=False), carry, groups)
    return carry, jax.tree.map(lambda y: y.reshape(layers, *y.shape[2:]), stacked)


def _input_tagged(step: Step) -> Step:
    """The step whose activations bear the tag `BLOCK_INPUT` where they come in; scalars that are carried do not."""

    def tag(value: jax.Array) -> jax.Array:
        return checkpoint_name(value, BLOCK_INPUT) if value.ndim > 1 else value

    return lambda carry, layer: step(jax.tree.map(tag, carry), layer)


def _weight_shapes(shape: ModelShape) -> frozenset[tuple[int, ...]]:
    return frozenset(sizes for stack in stacks(shape) for sizes in block_sizes(shape, stack).values())


def _all_but_weights(shapes: frozenset[tuple[int, ...]]) -> Callable[..., bool]:
    """Keeps every value but weights as they are computed with, which have these shapes.

    A cast or gathered weight that is kept for the backward pass, of every layer, would undo its sharding.
    """

    def keep(primitive: Any, *values: Any, **_: Any) -> bool:
        of_weight = bool(values) and getattr(values[0], "shape", None) in shapes
        return not (of_weight and primitive.name in ("convert_element_type", "sharding_constraint"))

    return keep
