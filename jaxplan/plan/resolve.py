"""Where each leaf of a user's pytree goes under a plan, and why. No JAX here.

A leaf is looked up, in this order: in names that the caller gives, among the plan's own leaves (path and
shape), in the model's metadata through the plan's rules. Scalars and vectors are whole on every device.
Whatever is left is an error: an array that nobody decided about is never replicated in silence.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from jaxplan.errors import InputError
from jaxplan.plan.record import LeafSpec, PlanRecord, show_spec
from jaxplan.plan.sharding import Rules, Spec
from jaxplan.plan.tree import Name, TreeLeaf, segments
from jaxplan.units import format_bytes

T = TypeVar("T")

SHOWN = 8  # leaves that a message lists
PADDED_MULTIPLE = 128  # the width of a TPU's matrix unit, and a multiple of every usual tensor axis
ALWAYS_KNOWN = ("layers",)  # the dim that stacks layers is sharded by no rule of data, fsdp and tensor


@dataclass(frozen=True)
class Resolved:
    """A leaf with its spec; `unknown` are names of its dims that the plan does not know."""

    leaf: TreeLeaf
    spec: Spec
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unresolved:
    """A leaf that nobody decided about."""

    leaf: TreeLeaf
    reason: str


@dataclass(frozen=True)
class Resolver:
    """A plan's answer to any leaf.

    Attributes:
        names: dim names of leaves that have none, by path or the end of a path.
        default: the spec of leaves that nothing else decides, cut to their rank; None: an error.
    """

    record: PlanRecord
    names: Mapping[str, Sequence[Name]] = field(default_factory=dict)
    default: Spec | None = None

    @property
    def rules(self) -> Rules:
        return self.record.plan.rules

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.record.plan.sizes

    @cached_property
    def known(self) -> frozenset[str]:
        """Every dim name that the plan has a rule, a priority or an array for."""
        dims = {name for leaf in self.record.leaves() for entry in leaf.dims for name in entry}
        return frozenset(
            {*dims, *self.rules.compute, *self.rules.optimizer, *self.rules.priority, *ALWAYS_KNOWN}
        )

    def resolve(self, leaf: TreeLeaf) -> Resolved | Unresolved:
        """Where one leaf goes."""
        given = _longest(self.names, leaf.path)
        if given is not None:
            return self._named(leaf, tuple(given))
        recorded = self._recorded(leaf)
        if recorded is not None:
            return Resolved(leaf, recorded)
        if leaf.names is not None:
            return self._named(leaf, leaf.names)
        if len(leaf.shape) < 2:
            return Resolved(leaf, ((),) * len(leaf.shape))
        return self._otherwise(leaf, "no rule, name or recorded array")

    def _otherwise(self, leaf: TreeLeaf, reason: str) -> Resolved | Unresolved:
        if self.default is None:
            return Unresolved(leaf, reason)
        return Resolved(leaf, (*self.default, *((),) * len(leaf.shape))[: len(leaf.shape)])

    def _recorded(self, leaf: TreeLeaf) -> Spec | None:
        """The spec of the plan's own leaf of that path and shape, else of the parameter that it mirrors."""
        record = self.record
        own = _match(record.optimizer if leaf.optimizer else (*record.parameters, *record.batch), leaf)
        if own is not None or not leaf.optimizer:
            return own.spec if own is not None else None
        mirrored = _match(record.parameters, leaf)
        if mirrored is None:
            return None
        ids = iter(range(sum(len(entry) for entry in mirrored.dims)))
        shape = tuple(tuple(next(ids) for _ in entry) for entry in mirrored.dims)
        flat = [name for entry in mirrored.dims for name in entry]
        return self.rules.storage_of_optimizer.spec(shape, flat, tuple(self.sizes))

    def _named(self, leaf: TreeLeaf, names: tuple[Name, ...]) -> Resolved | Unresolved:
        """Names through the rules; a name that is a mesh axis means that axis."""
        if len(names) != len(leaf.shape):
            return Unresolved(leaf, f"{len(names)} names {names} for {len(leaf.shape)} dims")
        axes = [self._axes(name) for name in names]
        taken = [axis for entry in axes for axis in entry]
        if len(set(taken)) != len(taken):
            return Unresolved(leaf, f"names {names} use a mesh axis twice")
        dims = [
            "" if entry or not isinstance(name, str) else name
            for name, entry in zip(names, axes, strict=True)
        ]
        rules = self.rules.storage_of_optimizer if leaf.optimizer else self.rules
        free = [axis for axis in self.sizes if axis not in taken]
        ruled = rules.spec(tuple((i,) for i in range(len(dims))), dims, free)
        spec = tuple(mine or other for mine, other in zip(axes, ruled, strict=True))
        unknown = tuple(name for name in dims if name and name not in self.known)
        matrix = sum(name not in ALWAYS_KNOWN for name in names) >= 2
        if unknown and matrix and not any(spec):
            return self._otherwise(leaf, f"named {names}, and {self.suggest(unknown)}")
        return Resolved(leaf, spec, unknown)

    def _axes(self, name: Name) -> tuple[str, ...]:
        entry = (name,) if isinstance(name, str) else name or ()
        return tuple(entry) if entry and all(axis in self.sizes for axis in entry) else ()

    def suggest(self, unknown: Iterable[str]) -> str:
        """Unknown names in words, each with the known name that is closest."""
        words = []
        for name in dict.fromkeys(unknown):
            close = difflib.get_close_matches(name, sorted(self.known), 1)
            words.append(f"no rule knows {name!r}" + (f" (is it {close[0]!r}?)" if close else ""))
        return ", ".join(words)

    def resolve_all(self, leaves: Sequence[TreeLeaf]) -> list[Resolved]:
        """Every leaf of a tree.

        Raises:
            InputError: leaves that nobody decided about, largest first; dims that their axes do not divide.
        """
        found = [self.resolve(leaf) for leaf in leaves]
        left = [one for one in found if isinstance(one, Unresolved)]
        if left:
            raise self._undecided(left)
        resolved = [one for one in found if isinstance(one, Resolved)]
        faults = [text for one in resolved for text in self._indivisible(one)]
        if faults:
            raise InputError(_listed(faults, "; "), "dims that their mesh axes divide")
        return resolved

    def _undecided(self, left: Sequence[Unresolved]) -> InputError:
        ordered = sorted(left, key=lambda one: -one.leaf.nbytes)
        total = format_bytes(sum(one.leaf.nbytes for one in left))
        lines = [
            f"{one.leaf.path} {one.leaf.shape} {format_bytes(one.leaf.nbytes)} ({one.reason})"
            for one in ordered
        ]
        return InputError(
            f"{len(left)} arrays ({total}) would be replicated because nothing says where they go: "
            + _listed(lines, "; "),
            "names of their dims in the model's metadata",
            "names={'end.of.path': ('embed', 'mlp')}, or default=() to replicate them knowingly; "
            "a batch goes to batch_shardings",
        )

    def _indivisible(self, one: Resolved) -> list[str]:
        out = []
        for position, (size, axes) in enumerate(zip(one.leaf.shape, one.spec, strict=True)):
            shards = math.prod(self.sizes[axis] for axis in axes)
            if size % shards:
                what = f"{one.leaf.path} {one.leaf.shape}: dim {position} ({size})"
                by = f"is not divisible by {'*'.join(axes)} = {shards}"
                out.append(f"{what} {by} ({self._legal(one, position, shards)})")
        return out

    def _legal(self, one: Resolved, position: int, shards: int) -> str:
        """What would be possible instead: the same axes on another dim, or a padded dim."""
        size, spec = one.leaf.shape[position], list(one.spec)
        multiple = math.lcm(shards, PADDED_MULTIPLE) if size >= PADDED_MULTIPLE else shards
        legal = f"pad it to {math.ceil(size / multiple) * multiple}"
        for other, extent in enumerate(one.leaf.shape):
            if not spec[other] and extent % shards == 0 and extent:
                spec[other], spec[position] = spec[position], ()
                return f"legal: {show_spec(spec)}, or {legal}"
        return f"legal: {legal}"


def _match(candidates: Iterable[LeafSpec], leaf: TreeLeaf) -> LeafSpec | None:
    """The candidate of the leaf's shape whose whole path ends the leaf's; the longest path wins."""
    same = {candidate.path: candidate for candidate in candidates if candidate.shape == leaf.shape}
    return _longest(same, leaf.path)


def _longest(by_path: Mapping[str, T], path: str) -> T | None:
    """The value whose path is `path` itself, or the longest end of it."""
    if path in by_path:
        return by_path[path]
    keys, best, length = segments(path), None, 0
    for candidate, value in by_path.items():
        wanted = segments(candidate)
        if len(wanted) > length and keys[-len(wanted) :] == wanted:
            best, length = value, len(wanted)
    return best


def _listed(items: Sequence[str], joint: str) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return joint.join(items[:SHOWN]) + more
