"""Names for atoms: as given, else from what the program does with them, else from where they stand. No JAX here.

Given names come first (Flax metadata, the catalogue), then loops and the batch by position, then roles that the
program shows (`workload.roles`), then the parameter's path. Copies and cut dims are named after their original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.workload.labels import Recorder
from jaxplan.workload.pairs import Pairs
from jaxplan.workload.roles import Roles, free_name
from jaxplan.workload.table import DimIds, Shape

UNNAMED = "?"
POSITIONS = {
    1: ("batch",),
    2: ("batch", "seq"),
    3: ("batch", "seq", "features"),
    4: ("batch", "height", "width", "channels"),
}


@dataclass(frozen=True)
class Labelled:
    """One input of the program: its path, shape, and the names given to its dimensions (None: unknown)."""

    path: str
    shape: Shape
    given: tuple[str | None, ...] | None = None


def name_atoms(recorder: Recorder, parameters: Sequence[Labelled], batch: Sequence[Labelled]) -> dict[int, str]:
    """A name for every leaf atom that operations or inputs have; `?...` where nothing is known."""
    names: dict[int, str] = {}
    _given(recorder, [*parameters, *batch], names)
    _loops(recorder, names)
    dims = [recorder.atoms.flat(parameter.shape) for parameter in parameters]
    features = _features(recorder, dims)
    _batch(recorder, batch, names, features)
    Roles(recorder, dims, names).assign()
    Pairs(recorder, dims, names).assign()
    _batch(recorder, batch, names)
    _paths(recorder, parameters, names)
    _derived(recorder, names)
    for operation in recorder.operations:
        for atom in recorder.atoms.flat(operation.dims):
            if atom not in names:
                origin = recorder.atoms.origin(atom)
                names[atom] = free_name(recorder, atom, f"{UNNAMED}{origin}{recorder.atoms.size(atom)}", names)
    return names


def _given(recorder: Recorder, inputs: Sequence[Labelled], names: dict[int, str]) -> None:
    """Atoms that are a whole given dimension take its name (the most frequent); then pieces of cut dimensions."""
    votes: dict[int, Counter[str]] = {}
    cut: list[tuple[str, DimIds]] = []
    for labelled in inputs:
        for sequence, name in zip(labelled.shape, labelled.given or (), strict=False):
            leaves = recorder.atoms.leaves(sequence)
            if name is None or not leaves:
                continue
            if len(leaves) == 1:
                votes.setdefault(leaves[0], Counter())[name] += 1
            else:
                cut.append((name, leaves))
    for atom, counter in votes.items():
        names[atom] = min(counter, key=lambda name: (-counter[name], name))
    for name, leaves in cut:
        if leaves[0] not in names:
            names[leaves[0]] = name
        minor = "group" if name == "heads" else f"{name}_minor"
        for atom in leaves[1:]:
            names.setdefault(atom, minor)


def _loops(recorder: Recorder, names: dict[int, str]) -> None:
    for atom in {recorder.atoms.find(atom) for atom in range(len(recorder.atoms))}:
        if recorder.atoms.origin(atom) in ("layers", "loop") and recorder.atoms.leaves((atom,)) == (atom,):
            names.setdefault(atom, recorder.atoms.origin(atom))


def _features(recorder: Recorder, parameters: Sequence[DimIds]) -> frozenset[int]:
    """Atoms that forward products contract with weights: where the batch has them, its elements are features.

    Positions alone say little of them, while their role in the program does (`embed`, say).
    """
    held = {atom for dims in parameters if len(dims) > 1 for atom in dims}
    gone = {
        atom
        for operation in recorder.operations
        if operation.kind == "matmul" and operation.phase == "forward"
        for atom in recorder.atoms.flat(operation.contracted)
    }
    return frozenset(held & gone)


def _batch(
    recorder: Recorder, batch: Sequence[Labelled], names: dict[int, str], features: frozenset[int] | None = None
) -> None:
    """Names by position in the batch: first of all but `features`, then (None) of what is left, which are those."""
    for labelled in batch:
        positions = POSITIONS.get(len(labelled.shape), ())
        for sequence, name in zip(labelled.shape, positions, strict=False):
            for atom in recorder.atoms.leaves(sequence):
                if atom in names or (features is not None and atom in features and name != "batch"):
                    continue
                left = "features" if name == "seq" and features is None else name
                names[atom] = free_name(recorder, atom, left, names)


def _paths(recorder: Recorder, parameters: Sequence[Labelled], names: dict[int, str]) -> None:
    for parameter in parameters:
        for position, sequence in enumerate(parameter.shape):
            leaves = recorder.atoms.leaves(sequence)
            for number, atom in enumerate(leaves):
                part = f".{number}" if len(leaves) > 1 else ""
                if atom not in names:
                    names[atom] = free_name(recorder, atom, f"{parameter.path}:{position}{part}", names)


def _derived(recorder: Recorder, names: dict[int, str]) -> None:
    """A copy is named `seq'`, a strided or shortened dim `seq~`."""
    atoms = recorder.atoms
    for atom in {leaf for op in recorder.operations for leaf in atoms.flat(op.dims)}:
        original = atoms.original(atom)
        if atom not in names and original is not None:
            leaf = atoms.leaves((original,))[0]
            if leaf in names:
                names[atom] = free_name(recorder, atom, names[leaf] + "'", names)
    for made, whole in recorder.parts.items():
        for atom, leaf in zip(atoms.leaves((made,)), atoms.leaves(whole), strict=False):
            if atom not in names and leaf in names:
                names[atom] = free_name(recorder, atom, names[leaf] + "~", names)
