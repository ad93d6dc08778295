"""What is known of a saved step, beside its arrays: shapes, dtypes, digests, position, versions. No JAX."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jaxplan.checkpoint.position import Position

SCHEMA = "jaxplan.checkpoint/1"
KEY = "key<"        # dtypes of keys of random numbers begin so


@dataclass(frozen=True)
class Leaf:
    """One array of a state: `dtype` is numpy's name, `digest` eight hexadecimal digits (`checkpoint.digest`)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""


@dataclass(frozen=True)
class StepRecord:
    """One step as it was saved.

    Attributes:
        leaves: every array, in the order of the tree.
        loss: of that step, where the caller said it.
        position: where the data stands, where the caller said it.
        mesh: axis to size, of the mesh that it was saved from.
        versions: packages that wrote it.
        notes: whatever else the caller keeps: plain data.
        layer_order: `Plan.layer_order`: which layer lies where in stacked weights; empty: the model's own order.
    """

    step: int
    leaves: tuple[Leaf, ...]
    loss: float | None = None
    position: Position | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    layer_order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step must be at least 0, got {self.step}")
        paths = [leaf.path for leaf in self.leaves]
        if len(set(paths)) != len(paths):
            twice = next(p for p in paths if paths.count(p) > 1)
            raise ValueError(f"two arrays of the state have the path {twice!r}")

    @property
    def digests(self) -> dict[str, str]:
        return {leaf.path: leaf.digest for leaf in self.leaves}

    def to_json(self) -> dict[str, Any]:
        """Plain data with a seal over all of it: a flipped bit of the record is found as one of an array is."""
        data = {
            "schema": SCHEMA,
            "step": self.step,
            "loss": self.loss,
            "position": None if self.position is None else asdict(self.position),
            "mesh": dict(self.mesh),
            "versions": dict(self.versions),
            "notes": dict(self.notes),
            "layer_order": list(self.layer_order),
            "leaves": [[leaf.path, list(leaf.shape), leaf.dtype, leaf.digest] for leaf in self.leaves],
        }
        return {**data, "seal": _seal(data)}


def from_json(data: Any) -> StepRecord:
    """The record of a step.

    Raises:
        ValueError: it is none, or it was changed after it was written.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"no record of schema {SCHEMA}")
    if data.pop("seal", None) != _seal(data):
        raise ValueError("the record was changed after it was written")
    position = data["position"]
    return StepRecord(
        data["step"],
        tuple(Leaf(path, tuple(shape), dtype, digest) for path, shape, dtype, digest in data["leaves"]),
        data["loss"],
        None if position is None else Position(**position),
        data["mesh"],
        data["versions"],
        data["notes"],
        tuple(data["layer_order"]),
    )


def _seal(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def differences(saved: StepRecord, asked: tuple[Leaf, ...], *, cast: bool = False) -> list[str]:
    """How the asked-for state differs from the saved one, array by array; with `cast` dtypes may."""
    have, want = {leaf.path: leaf for leaf in saved.leaves}, {leaf.path: leaf for leaf in asked}
    missing = [f"{path} is not in the checkpoint" for path in want if path not in have]
    extra = [f"{path} is in the checkpoint only" for path in have if path not in want]
    changed = [
        f"{path} is {_kind(have[path])} in the checkpoint, asked for as {_kind(want[path])}"
        for path in want
        if path in have and not _fits(have[path], want[path], cast)
    ]
    return [*changed, *missing, *extra]


def _fits(have: Leaf, want: Leaf, cast: bool) -> bool:
    """Whether the one can be restored as the other; keys of random numbers are cast to nothing."""
    keys = KEY in (have.dtype + want.dtype)
    return have == replace(want, digest=have.digest, dtype=have.dtype if cast and not keys else want.dtype)


def _kind(leaf: Leaf) -> str:
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
