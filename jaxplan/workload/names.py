"""Names for atoms: as given, else from what the program does with them, else from where they stand. No JAX here.

Given names come first (Flax metadata, the catalogue). Without them the roles are read off the program: batch and seq
from the batch, vocab from the lookup, embed is in most parameters, heads are what attention's products keep, mlp is
made from embed and contracted back into it, expert dims are in front of such pairs. The rest is named by its path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxplan.workload.labels import DraftOperation, Recorder
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
    _batch(recorder, batch, names)
    _roles(recorder, parameters, names)
    _paths(recorder, parameters, names)
    _derived(recorder, names)
    for operation in recorder.operations:
        for atom in recorder.atoms.flat(operation.dims):
            if atom not in names:
                origin = recorder.atoms.origin(atom)
                names[atom] = _unique(f"{UNNAMED}{origin}{recorder.atoms.size(atom)}", names)
    return names


def _unique(name: str, names: dict[int, str]) -> str:
    """`name`, numbered where another atom has it."""
    taken = set(names.values())
    if name not in taken:
        return name
    return next(f"{name}{number}" for number in range(2, len(taken) + 3) if f"{name}{number}" not in taken)


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


def _batch(recorder: Recorder, batch: Sequence[Labelled], names: dict[int, str]) -> None:
    for labelled in batch:
        positions = POSITIONS.get(len(labelled.shape), ())
        for sequence, name in zip(labelled.shape, positions, strict=False):
            for atom in recorder.atoms.leaves(sequence):
                if atom not in names:
                    names[atom] = _unique(name, names)


def _roles(recorder: Recorder, parameters: Sequence[Labelled], names: dict[int, str]) -> None:
    """vocab, embed, head_dim, heads (kv_heads, group), mlp, expert, each where no name stands yet."""
    atoms = recorder.atoms
    flat = [atoms.flat(parameter.shape) for parameter in parameters]
    count = Counter(atom for dims in flat for atom in set(dims))
    matmuls = [(op, set(atoms.flat(op.dims)), set(atoms.flat(op.contracted))) for op in _forward(recorder, "matmul")]

    def assign(atom: int, name: str) -> None:
        if atom in count and atom not in names:
            names[atom] = _unique(name, names)

    for operation in _forward(recorder, "lookup"):
        if operation.reads and set(atoms.flat(operation.reads[0][1])) & set(count):
            for atom in atoms.flat(operation.contracted):
                assign(atom, "vocab")
    if "embed" not in names.values():
        unnamed = Counter({atom: n for atom, n in count.items() if atom not in names})
        if unnamed:
            assign(unnamed.most_common(1)[0][0], "embed")
    embed = {atom for atom, name in names.items() if name == "embed"}
    _attention(recorder, flat, count, names)
    made = {a for _, dims, gone in matmuls if gone & embed for a in dims - gone}
    undone = {a for _, dims, gone in matmuls if (dims - gone) & embed for a in gone}
    hidden = [atom for atom in count if atom in made & undone and atom not in names and atom not in embed]
    for atom in sorted(hidden, key=lambda a: -count[a]):
        kept = any(atom in dims and atom not in gone and dims & set(hidden) - {atom} for _, dims, gone in matmuls)
        assign(atom, "expert" if kept and len(hidden) > 1 and _leads(atom, flat, hidden) else "mlp")


def _leads(atom: int, flat: Sequence[DimIds], hidden: Sequence[int]) -> bool:
    """Whether the atom stands before another hidden atom in a parameter (expert, embed, mlp)."""
    return any(atom in dims and set(dims[dims.index(atom) + 1 :]) & set(hidden) for dims in flat)


def _attention(recorder: Recorder, flat: Sequence[DimIds], count: Counter[int], names: dict[int, str]) -> None:
    """In a product over a dim and its copy, the parameters' atoms are heads where kept, head_dim where contracted."""
    atoms = recorder.atoms
    heads: list[int] = []
    for kind in ("matmul", "attention"):
        for operation in _forward(recorder, kind):
            dims = atoms.flat(operation.dims)
            if not any(atoms.original(atom) in dims for atom in dims):
                continue
            gone = atoms.flat(operation.contracted)
            if kind == "attention":
                gone = dims[-1:]
            for atom in dims:
                if atom not in count or atom in names:
                    continue
                if atom in gone:
                    names[atom] = _unique("head_dim", names)
                elif atom not in heads:
                    heads.append(atom)
    pairs = {dims[i : i + 2] for dims in flat for i in range(len(dims))}
    for atom in heads:
        if atom in names:
            continue
        minor = next((other for other in heads if (atom, other) in pairs and other not in names), None)
        if minor is not None:
            names[minor] = _unique("group", names)
        names[atom] = _unique("kv_heads" if minor is not None else "heads", names)


def _forward(recorder: Recorder, kind: str) -> Iterator[DraftOperation]:
    return (op for op in recorder.operations if op.kind == kind and op.phase == "forward")


def _paths(recorder: Recorder, parameters: Sequence[Labelled], names: dict[int, str]) -> None:
    for parameter in parameters:
        for position, sequence in enumerate(parameter.shape):
            leaves = recorder.atoms.leaves(sequence)
            for number, atom in enumerate(leaves):
                part = f".{number}" if len(leaves) > 1 else ""
                if atom not in names:
                    names[atom] = _unique(f"{parameter.path}:{position}{part}", names)


def _derived(recorder: Recorder, names: dict[int, str]) -> None:
    """A copy is named `seq'`, a strided or shortened dim `seq~`."""
    atoms = recorder.atoms
    for atom in {leaf for op in recorder.operations for leaf in atoms.flat(op.dims)}:
        original = atoms.original(atom)
        if atom not in names and original is not None:
            leaf = atoms.leaves((original,))[0]
            if leaf in names:
                names[atom] = _unique(names[leaf] + "'", names)
    for made, whole in recorder.parts.items():
        for atom, leaf in zip(atoms.leaves((made,)), atoms.leaves(whole), strict=False):
            if atom not in names and leaf in names:
                names[atom] = _unique(names[leaf] + "~", names)
