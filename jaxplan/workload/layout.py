"""A mesh and a plan's rules, seen from inside a program: which axes shard the dims of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxplan.plan.sharding import Rules

Names = Sequence[str | None]


@dataclass(frozen=True, eq=False)
class Layout:
    """The mesh that a program runs on and the rules that lay its dims over it.

    A layout is compared by identity: it is a static part of a program.
    """

    mesh: Mesh
    rules: Rules

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
        """Specification of a stored parameter; those with one dim beside `layers` (norms) are replicated."""
        return parameter_spec(self.rules, names, self.axes)

    def optimizer_spec(self, names: Names) -> PartitionSpec:
        """Specification of an optimizer's value that mirrors a parameter with these dims."""
        return parameter_spec(self.rules.storage_of_optimizer, names, self.axes)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def gathered(self, weight: jax.Array, names: Names, dtype: DTypeLike) -> jax.Array:
        """A stored weight as operations on the batch read it: cast, then gathered; its gradient scattered.

        A bare sharding constraint would hold the cotangent in the gathered sharding, too: a full all-reduce.
        """
        stored = self.parameter_spec(names)
        sequences = tuple((i,) for i in range(len(names)))
        known = [*(name or "" for name in names), "batch"]
        used = _partition_spec(self.rules.spec(sequences, known, self.axes, context=(len(names),)))
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

    def constrain(self, value: jax.Array, names: Names) -> jax.Array:
        """The value, held in the layout's sharding of these dims."""
        return jax.lax.with_sharding_constraint(value, self.sharding(self.spec(names)))


def parameter_spec(rules: Rules, names: Names, axes: Sequence[str]) -> PartitionSpec:
    """Where a parameter is stored under `rules`: see `Layout.parameter_spec`."""
    if len([name for name in names if name != "layers"]) < 2:
        return PartitionSpec(*[None] * len(names))
    return _partition_spec(_spec(rules, names, axes))


def _spec(rules: Rules, names: Names, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return rules.spec(tuple((i,) for i in range(len(names))), [name or "" for name in names], axes)


def _partition_spec(spec: tuple[tuple[str, ...], ...]) -> PartitionSpec:
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in spec])
