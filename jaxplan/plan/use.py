"""A plan in use: its mesh, shardings, axis rules and jit, for any model. Imports JAX when called."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxplan.errors import InputError
from jaxplan.plan import files
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import LeafSpec, PlanRecord
from jaxplan.plan.resolve import Resolver
from jaxplan.plan.sharding import Spec
from jaxplan.plan.step import PlannedStep, PlanWarning
from jaxplan.plan.summary import summary
from jaxplan.plan.tree import Name, leaves, segments, unflatten

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

AxisRule = tuple[str, str | tuple[str, ...] | None]


def load(path: str | os.PathLike[str]) -> LoadedPlan:
    """Reads a plan file for use.

    Raises:
        InputError: the file is no plan (`plan.files.read` says what is wrong with it).
    """
    return LoadedPlan(files.read(path), Path(path))


#: What the figures of a plan with these axes assume of a step, beside its arrays' shardings.
CODE_OF_AXES = {
    "stage": "they are of a pipeline, whose stages pass microbatches on",
    "context": "they are of ring or Ulysses attention, which sees all keys without gathering them",
    "expert": "they are of an exchange of tokens by all-to-all",
}


@dataclass(frozen=True)
class LoadedPlan:
    """A plan and what can be done with it.

    Attributes:
        record: the plan with everything known about it.
        path: where it was read from; None for a record that never was a file.
    """

    record: PlanRecord
    path: Path | None = field(default=None, compare=False)

    @property
    def plan(self) -> Plan:
        """The decisions."""
        return self.record.plan

    def mesh(self, devices: Sequence[Any] | None = None, *, virtual: bool = False) -> Mesh:
        """The plan's mesh, with `Auto` axes, every device where the plan's placement puts it.

        Args:
            devices: devices to take instead, in any order; those of a compile-only topology too.
            virtual: take the host's CPU devices as stand-ins.

        Raises:
            InputError: the attached machine is not the plan's, or has another number of devices.
        """
        from jaxplan.plan import devices as attached

        return attached.mesh(self.plan, devices, virtual)

    def shardings(
        self,
        tree: Any,
        mesh: Mesh | None = None,
        *,
        names: Mapping[str, Sequence[Name]] | None = None,
        default: Sequence[str | Sequence[str] | None] | None = None,
    ) -> Any:
        """Where every array of a pytree lies: parameters, training state, optimizer state, recorded batch.

        Arrays or their ShapeDtypeStructs will do, in dicts, Flax linen boxes, nnx states and modules, optax
        states. An array goes where `names`, the plan's own arrays (same path end, same shape) or the model's
        metadata say; an optimizer's array by the optimizer's rules; scalars and vectors are whole on every
        device.

        Args:
            mesh: the plan's mesh where it is not the attached one.
            names: names of dims, or mesh axes, by the end of a path: `{"dense.kernel": ("embed", "mlp")}`.
            default: spec of arrays that nothing else decides; `()` replicates them. None: they are an error.

        Returns:
            A pytree of NamedSharding with the structure of `tree`.

        Raises:
            InputError: arrays that nothing decides, largest first; dims that their axes do not divide.
        """
        from jax.sharding import NamedSharding

        mesh = self._mesh(mesh)
        resolver = Resolver(self.record, dict(names or {}), _spec_of(default))
        found = leaves(tree)
        resolved = resolver.resolve_all(found)
        unknown = {name for one in resolved for name in one.unknown}
        if unknown:
            warnings.warn(
                f"the model names dims that the plan does not know: {resolver.suggest(sorted(unknown))}",
                PlanWarning,
                2,
            )
        return unflatten(tree, [NamedSharding(mesh, _partition_spec(one.spec)) for one in resolved], found)

    def batch_shardings(self, batch: Any, mesh: Mesh | None = None) -> Any:
        """Where a batch lies: every array along its first dim over the axes of `batch`, scalars everywhere.

        Raises:
            InputError: a first dim that these axes do not divide.
        """
        from jax.sharding import NamedSharding

        mesh = self._mesh(mesh)
        found = leaves(batch)
        names = {leaf.path: ("batch", *[None] * (len(leaf.shape) - 1)) for leaf in found if leaf.shape}
        resolved = Resolver(self.record, names).resolve_all(found)
        return unflatten(batch, [NamedSharding(mesh, _partition_spec(one.spec)) for one in resolved], found)

    def axis_rules(self) -> tuple[AxisRule, ...]:
        """The plan's rules as pairs (dim name, mesh axes), the first owner of an axis first.

        For `flax.linen.logical_axis_rules`, nnx and MaxText, which give an axis to the first pair that can
        have it. They shard vectors too, which the plan does not; `shardings` gives the plan's own answer.
        """
        rules = self.plan.rules
        ranked = [*rules.priority, *sorted(set(rules.compute) - set(rules.priority))]
        pairs: list[AxisRule] = [
            (name, _entry(rules.compute[name])) for name in ranked if name in rules.compute
        ]
        ruled = set(rules.compute)
        recorded = [name for leaf in self.record.parameters for entry in leaf.dims for name in entry]
        return (*pairs, *((name, None) for name in dict.fromkeys(["layers", *recorded]) if name not in ruled))

    def unused_rules(self, tree: Any) -> tuple[str, ...]:
        """Names that the plan has rules for and no array of `tree` bears."""
        used = self._names(tree)
        return tuple(name for name, axes in self.axis_rules() if axes is not None and name not in used)

    def unknown_names(self, tree: Any) -> tuple[str, ...]:
        """Names in the metadata of `tree` that the plan does not know: a typo there means replication."""
        known = Resolver(self.record).known | set(self.plan.sizes)
        return tuple(sorted(self._names(tree) - known))

    def jit(
        self,
        train_step: Callable[..., Any],
        *,
        mesh: Mesh | None = None,
        names: Mapping[str, Sequence[Name]] | None = None,
        default: Sequence[str | Sequence[str] | None] | None = None,
        donate: bool = True,
    ) -> PlannedStep:
        """The train step under this plan.

        Args:
            train_step: `(state, batch, *rest)` to the new state, or to `(state, ...)`.
            mesh, names, default: as in `shardings`, for the state.
            donate: reuse the state's memory.

        Returns:
            A callable; it compiles at its first call, and refuses what would be replicated in silence.

        Warns:
            PlanWarning: the plan has axes whose work PartitionSpecs alone do not do.
        """
        mesh = self._mesh(mesh)
        for axis, missing in CODE_OF_AXES.items():
            if self.record.plan.size(axis) > 1:
                warnings.warn(
                    f"the plan's axis {axis} shards this step's arrays; {missing}, which this step has to do itself "
                    "(`jaxplan.workload.step.build` makes the reference decoder's step, which does)",
                    PlanWarning,
                    stacklevel=2,
                )
        return PlannedStep(
            train_step,
            mesh,
            (
                lambda state: self.shardings(state, mesh, names=names, default=default),
                lambda batch: self.batch_shardings(batch, mesh),
            ),
            donate,
        )

    def spec(self, path: str) -> PartitionSpec:
        """The PartitionSpec of one of the plan's own arrays, by its path or the end of it.

        Raises:
            InputError: no array, or several, of that path.
        """
        return _partition_spec(self._leaf(path).spec)

    def summary(self) -> str:
        """The plan in a few lines of text."""
        return summary(self.record)

    def _leaf(self, path: str) -> LeafSpec:
        wanted, every = segments(path), list(self.record.leaves())
        exact = [leaf for leaf in every if segments(leaf.path) == wanted]
        found = exact or [leaf for leaf in every if wanted and segments(leaf.path)[-len(wanted) :] == wanted]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{len(found)} arrays end in {path!r}", f"one of {', '.join(x.path for x in found)}"
            )
        close = difflib.get_close_matches(path, [leaf.path for leaf in every], 3)
        raise InputError(f"the plan has no array {path!r}", suggestion=", ".join(close))

    def _mesh(self, mesh: Mesh | None) -> Mesh:
        if mesh is None:
            return self.mesh()
        given = {str(name): int(size) for name, size in dict(mesh.shape).items()}
        if given != self.plan.sizes:
            raise InputError(
                f"the mesh has {given}", f"the plan's axes and sizes {self.plan.sizes}", "plan.mesh()"
            )
        return mesh

    def _names(self, tree: Any) -> set[str]:
        entries = [entry for leaf in leaves(tree) for entry in leaf.names or ()]
        return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry or ())}


def _entry(axes: Sequence[str]) -> str | tuple[str, ...] | None:
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def _partition_spec(spec: Spec) -> PartitionSpec:
    from jax.sharding import PartitionSpec

    return PartitionSpec(*[_entry(axes) for axes in spec])


def _spec_of(default: Sequence[str | Sequence[str] | None] | None) -> Spec | None:
    if default is None:
        return None
    return tuple((entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in default)
