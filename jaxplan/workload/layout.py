"""A mesh and a plan's rules, seen from inside a program: which axes shard the dims of an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxplan.plan.sharding import STORED_DIMS, TENSOR_AXES, Rules

Names = Sequence[str | None]


@dataclass(frozen=True, eq=False)
class Layout:
    """The mesh that a program runs on and the rules that lay its dims over it.

    A layout is compared by identity: it is a static part of a program.

    Attributes:
        manual: the program runs inside a shard_map over all axes: arrays are local shards, what moves is written out
            (`enter`, `leave`, `gathered`) and constraints say nothing. Otherwise XLA's partitioner moves what
            constraints imply.
        around: axes over which a shard_map around the program is manual already, while XLA partitions it over the
            others: no dim lies over them.
    """

    mesh: Mesh
    rules: Rules
    manual: bool = False
    around: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.mesh.axis_names if name not in self.around)

    @property
    def here(self) -> Mesh | AbstractMesh:
        """The mesh as the code that runs now must name it."""
        return jax.sharding.get_abstract_mesh() if self.around else self.mesh

    def mapped(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """The function of local shards as one of arrays, manual over all axes (whose exchanges are its own)."""

        def call(*operands: Any) -> Any:
            mapped = jax.shard_map(
                function,
                mesh=self.here,
                in_specs=in_specs,
                out_specs=out_specs,
                axis_names=set(self.axes),
                check_vma=False,
            )
            return mapped(*operands)

        return call

    def axes_of(self, name: str, names: Names) -> tuple[str, ...]:
        """The mesh axes that shard dim `name` in an array whose dims are `names`."""
        return _spec(self.rules, names, self.axes)[list(names).index(name)]

    def gradient_axes_of(self, name: str, names: Names) -> tuple[str, ...]:
        """The same for the gradient, kept until the update, of a parameter: further divided under ZeRO-2."""
        return _spec(self.rules.storage_of_gradients, names, self.axes)[list(names).index(name)]

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

    def gradient_spec(self, names: Names) -> PartitionSpec:
        """Specification of the gradient, kept until the update, of a parameter with these dims."""
        return parameter_spec(self.rules.storage_of_gradients, names, self.axes)

    def optimizer_spec(self, names: Names) -> PartitionSpec:
        """Specification of an optimizer's value that mirrors a parameter with these dims."""
        return parameter_spec(self.rules.storage_of_optimizer, names, self.axes)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.here, spec)

    def gathered(
        self, weight: jax.Array, names: Names, dtype: DTypeLike, stack: str = "layers"
    ) -> jax.Array:
        """A layer's stored weight as operations on the batch read it: cast, then gathered; its gradient scattered.

        A bare sharding constraint would hold the cotangent in the gathered sharding, too: a full all-reduce.
        """
        if self.manual:
            return self._gathered_here(weight, names, dtype)
        stored = self._layer_spec(names, stack)
        sequences = tuple((i,) for i in range(len(names)))
        known = [*(name or "" for name in names), "batch", "seq"]
        used = _partition_spec(self.rules.spec(sequences, known, self.axes, context=(len(names), len(names) + 1)))
        kept = PartitionSpec(*self.gradient_spec([stack, *names])[1:])
        if used == stored == kept:
            return weight.astype(dtype)
        here, there, back = self.sharding(stored), self.sharding(used), self.sharding(kept)
        kind = weight.dtype

        def gather(weight: jax.Array) -> jax.Array:
            cast = jax.lax.with_sharding_constraint(weight.astype(dtype), here)
            return jax.lax.with_sharding_constraint(cast, there)

        def use_backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
            return (jax.lax.with_sharding_constraint(cotangent, back).astype(kind),)

        # the forward rule is open to a checkpoint's policy, as a call of `use` itself would not be
        use = jax.custom_vjp(gather)
        use.defvjp(lambda weight: (gather(weight), None), use_backward)
        return use(weight)

    def _gathered_here(self, weight: jax.Array, names: Names, dtype: DTypeLike) -> jax.Array:
        """The local shard cast and gathered over what stores it in parts; its cotangent is reduced and scattered.

        The stacked weights of all layers, too, where `layers` is among the names.
        """
        weight = weight.astype(dtype)
        spec = self.parameter_spec if "layers" in names else self._layer_spec
        stored, used = spec(names), spec([n if n not in STORED_DIMS else None for n in names])
        for position, (held, kept) in enumerate(zip(stored, used, strict=True)):
            if held != kept:
                axes = held if isinstance(held, tuple) else (held,)
                weight = jax.lax.all_gather(weight, axes, axis=position, tiled=True)
        return weight

    def _layer_spec(self, names: Names, stack: str = "layers") -> PartitionSpec:
        """Where one layer of a stacked parameter is stored, the stack's dim left out."""
        return PartitionSpec(*self.parameter_spec([stack, *names])[1:])

    def entering_spec(self, names: Names) -> PartitionSpec:
        """How a manual region takes a parameter: where it is stored, but of a vector the part that a device uses.

        A vector is stored whole, even where what it is added to is sharded; cutting it moves nothing.
        """
        if sum(name != "layers" for name in names) > 1:
            return self.parameter_spec(names)
        return PartitionSpec(*self.spec([*(n if n not in STORED_DIMS else None for n in names), "batch"])[:-1])

    @property
    def context_axes(self) -> tuple[str, ...]:
        """The axes over which the sequence is sharded inside of blocks, too."""
        return tuple(axis for axis in self.axes_of("seq", ("batch", "seq", "embed")) if axis not in TENSOR_AXES)

    def sequence_axes(self, names: Names) -> tuple[str, ...]:
        """The axes over which an activation's sequence is sharded between blocks, but not inside of them."""
        between = self.axes_of("seq", [name if name in ("batch", "seq", "embed") else None for name in names])
        return tuple(axis for axis in between if axis in TENSOR_AXES)

    def enter(self, value: jax.Array, names: Names) -> jax.Array:
        """An activation with the whole sequence that a block's tensor-parallel part computes on.

        (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.) Left to XLA where the layout is automatic, unless
        the sequence stays sharded over `context` (XLA would rather gather all of it to make parts of gradients) or is
        that of experts.
        """
        axes, position = self.sequence_axes(names), list(names).index("seq")
        if self.manual and axes:
            return jax.lax.all_gather(value, axes, axis=position, tiled=True)
        if self.manual or not self._said_aloud(names):
            return value
        return _held(value, (self.constrain, self._whole), (self.constrain,), names)

    def leave(self, value: jax.Array, names: Names) -> jax.Array:
        """Partial sums of a block's tensor-parallel part, added up and scattered along the sequence."""
        axes, position = self.sequence_axes(names), list(names).index("seq")
        if self.manual and axes:
            return jax.lax.psum_scatter(value, axes, scatter_dimension=position, tiled=True)
        if self.manual or not self._said_aloud(names):
            return value
        return _held(value, (self.constrain,), (self.constrain, self._whole), names)

    def _said_aloud(self, names: Names) -> bool:
        """Whether the sequence is sharded over tensor axes between blocks, and XLA has more than one way to gather it.

        It may be sharded over other axes, too; or experts have it, whose tokens XLA gathers anew for the gradient of
        their matrices (jaxlib 0.10.2), as it does with all tokens inside of a region that is manual over other axes.
        """
        between = self.sequence_axes(names)
        several = "expert" in names or len(self.axes_of("seq", names)) > len(between) or bool(self.around)
        return bool(between) and several

    def _whole(self, value: jax.Array, names: Names) -> jax.Array:
        """The value, held whole over the tensor axes of its sequence."""
        between, seq = self.spec(names), list(names).index("seq")
        kept = tuple(axis for axis in self.axes_of("seq", names) if axis not in TENSOR_AXES)
        return jax.lax.with_sharding_constraint(
            value, self.sharding(PartitionSpec(*between[:seq], kept, *between[seq + 1 :]))
        )

    def constrain(self, value: jax.Array, names: Names) -> jax.Array:
        """The value, held in the layout's sharding of these dims."""
        if self.manual:
            return value
        return jax.lax.with_sharding_constraint(value, self.sharding(self.spec(names)))


Hold = Callable[[jax.Array, Names], jax.Array]


def _held(value: jax.Array, forward: Sequence[Hold], backward: Sequence[Hold], names: Names) -> jax.Array:
    """The value held in one sharding after the other, and its cotangent in others."""

    def run(value: jax.Array, holds: Sequence[Hold]) -> jax.Array:
        for hold in holds:
            value = hold(value, names)
        return value

    held = jax.custom_vjp(lambda value: run(value, forward))
    held.defvjp(lambda value: (run(value, forward), None), lambda _, cotangent: (run(cotangent, backward),))
    return held(value)


def parameter_spec(rules: Rules, names: Names, axes: Sequence[str]) -> PartitionSpec:
    """Where a parameter is stored under `rules`: see `Layout.parameter_spec`."""
    return _partition_spec(_spec(rules, names, axes))


def _spec(rules: Rules, names: Names, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return rules.spec(tuple((i,) for i in range(len(names))), [name or "" for name in names], axes)


def _partition_spec(spec: tuple[tuple[str, ...], ...]) -> PartitionSpec:
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in spec])
