"""A mesh and a plan's rules, seen from inside a program: which axes shard the dims of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxplan.plan.sharding import TENSOR_AXES, Rules

Names = Sequence[str | None]


@dataclass(frozen=True, eq=False)
class Layout:
    """The mesh that a program runs on and the rules that lay its dims over it.

    A layout is compared by identity: it is a static part of a program.

    Attributes:
        manual: the program runs inside a shard_map over all axes: arrays are local shards, what moves is written out
            (`enter`, `leave`, `gathered`) and constraints say nothing. Otherwise XLA's partitioner moves what
            constraints imply.
    """

    mesh: Mesh
    rules: Rules
    manual: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.mesh.axis_names)

    def axes_of(self, name: str, names: Names) -> tuple[str, ...]:
        """The mesh axes that shard dim `name` in an array whose dims are `names`."""
        return _spec(self.rules, names, self.axes)[list(names).index(name)]

    def size(self, axes: Sequence[str]) -> int:
        """Product of the sizes of the axes."""
        size = 1
        for axis in axes:
            size *= self.mesh.shape[axis]
        return size

    def spec(self, names: Names) -> PartitionSpec:
        """Specification of a value with these dims, as operations compute it."""
        return _partition_spec(_spec(self.rules, names, self.axes))

    def parameter_spec(self, names: Names) -> PartitionSpec:
        """Specification of a stored parameter; one with a single dim beside `layers` (norms) is whole but for those."""
        return parameter_spec(self.rules, names, self.axes)

    def optimizer_spec(self, names: Names) -> PartitionSpec:
        """Specification of an optimizer's value that mirrors a parameter with these dims."""
        return parameter_spec(self.rules.storage_of_optimizer, names, self.axes)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def gathered(self, weight: jax.Array, names: Names, dtype: DTypeLike) -> jax.Array:
        """A layer's stored weight as operations on the batch read it: cast, then gathered; its gradient scattered.

        A bare sharding constraint would hold the cotangent in the gathered sharding, too: a full all-reduce.
        """
        if self.manual:
            return self._gathered_here(weight, names, dtype)
        stored = self._layer_spec(names)
        sequences = tuple((i,) for i in range(len(names)))
        known = [*(name or "" for name in names), "batch", "seq"]
        used = _partition_spec(self.rules.spec(sequences, known, self.axes, context=(len(names), len(names) + 1)))
        if used == stored:
            return weight.astype(dtype)
        here, there = self.sharding(stored), self.sharding(used)
        kind = weight.dtype

        def gather(weight: jax.Array) -> jax.Array:
            cast = jax.lax.with_sharding_constraint(weight.astype(dtype), here)
            return jax.lax.with_sharding_constraint(cast, there)

        def use_backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
            return (jax.lax.with_sharding_constraint(cotangent, here).astype(kind),)

        # the forward rule is open to a checkpoint's policy, as a call of `use` itself would not be
        use = jax.custom_vjp(gather)
        use.defvjp(lambda weight: (gather(weight), None), use_backward)
        return use(weight)

    def _gathered_here(self, weight: jax.Array, names: Names, dtype: DTypeLike) -> jax.Array:
        """The local shard cast and gathered over what stores it in parts; its cotangent is reduced and scattered."""
        weight = weight.astype(dtype)
        stored, used = self._layer_spec(names), self._layer_spec([n if n != "embed" else None for n in names])
        for position, (held, kept) in enumerate(zip(stored, used, strict=True)):
            if held != kept:
                axes = held if isinstance(held, tuple) else (held,)
                weight = jax.lax.all_gather(weight, axes, axis=position, tiled=True)
        return weight

    def _layer_spec(self, names: Names) -> PartitionSpec:
        """Where one layer of a stacked parameter is stored, its dim `layers` left out."""
        return PartitionSpec(*self.parameter_spec(["layers", *names])[1:])

    def sequence_axes(self, names: Names) -> tuple[str, ...]:
        """The axes over which an activation's sequence is sharded between blocks, but not inside of them."""
        between = self.axes_of("seq", [name if name in ("batch", "seq", "embed") else None for name in names])
        return tuple(axis for axis in between if axis in TENSOR_AXES)

    def enter(self, value: jax.Array, names: Names) -> jax.Array:
        """An activation with the whole sequence that a block's tensor-parallel part computes on.

        Left to XLA where the layout is automatic (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        """
        if not self.manual or not (axes := self.sequence_axes(names)):
            return value
        return jax.lax.all_gather(value, axes, axis=list(names).index("seq"), tiled=True)

    def leave(self, value: jax.Array, names: Names) -> jax.Array:
        """Partial sums of a block's tensor-parallel part, added up and scattered along the sequence."""
        if not self.manual or not (axes := self.sequence_axes(names)):
            return value
        return jax.lax.psum_scatter(value, axes, scatter_dimension=list(names).index("seq"), tiled=True)

    def constrain(self, value: jax.Array, names: Names) -> jax.Array:
        """The value, held in the layout's sharding of these dims."""
        if self.manual:
            return value
        return jax.lax.with_sharding_constraint(value, self.sharding(self.spec(names)))


def parameter_spec(rules: Rules, names: Names, axes: Sequence[str]) -> PartitionSpec:
    """Where a parameter is stored under `rules`: see `Layout.parameter_spec`."""
    return _partition_spec(_spec(rules, names, axes))


def _spec(rules: Rules, names: Names, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return rules.spec(tuple((i,) for i in range(len(names))), [name or "" for name in names], axes)


def _partition_spec(spec: tuple[tuple[str, ...], ...]) -> PartitionSpec:
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in spec])
