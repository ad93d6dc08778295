"""What a dim is for, read off the forward program: vocab, embed, heads, head_dim, mlp, expert, capacity. No JAX here.

A lookup indexes the vocabulary; the embedding is in most parameters; attention multiplies over a sequence and its copy,
keeps heads and contracts head_dim; a hidden dim is made from the embedding and contracted back into it, and experts
stand in front of such pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from jaxplan.workload.labels import Recorder
from jaxplan.workload.table import DimIds


def free_name(recorder: Recorder, atom: int, name: str, names: dict[int, str]) -> str:
    """`name`, numbered where an atom has it that meets this one in a tensor.

    Atoms that never meet may share a name (the vocabulary of two untied embeddings): a rule means both.
    """
    met = {n for other, n in names.items() if n.startswith(name) and recorder.atoms.are_enemies(atom, other)}
    if name not in met:
        return name
    return next(f"{name}{number}" for number in range(2, len(met) + 3) if f"{name}{number}" not in met)


class Roles:
    """Names the atoms of parameters by role, where they have no name yet.

    Args:
        parameters: the leaf atoms of each parameter, in order.
        names: names so far; extended in place.
    """

    def __init__(self, recorder: Recorder, parameters: Sequence[DimIds], names: dict[int, str]) -> None:
        self.recorder, self.parameters, self.names = recorder, parameters, names
        self.count = Counter(atom for dims in parameters for atom in set(dims))
        self.products = list(self._forward("matmul"))

    def assign(self) -> None:
        self.vocab()
        self.embed()
        self.attention()
        self.hidden()
        self.routing()

    def _forward(self, kind: str) -> Iterator[tuple[DimIds, DimIds]]:
        """(all dims, contracted dims) of the forward operations of a kind."""
        atoms = self.recorder.atoms
        for operation in self.recorder.operations:
            if operation.kind == kind and operation.phase == "forward":
                yield atoms.flat(operation.dims), atoms.flat(operation.contracted)

    def _name(self, atom: int, name: str) -> None:
        if atom in self.count and atom not in self.names:
            self.names[atom] = free_name(self.recorder, atom, name, self.names)

    def _named(self, name: str) -> set[int]:
        return {atom for atom, n in self.names.items() if n == name}

    def vocab(self) -> None:
        """What a lookup indexes: rows of the embedding table, and the loss's pick among logits.

        Where no lookup is in a table, and the pick is among fewer than there are features, it is among classes.
        """
        atoms = self.recorder.atoms
        tables = [set(atoms.flat(table)) for table, _, _ in self.recorder.tables.values()]
        batch = self._named("batch")
        embeds = any(table & set(self.count) and not table & batch for table in tables)
        for _, gone in self._forward("lookup"):
            for atom in gone:
                sizes = [atoms.size(a) for dims in self.parameters if atom in dims for a in dims if a != atom]
                classes = not embeds and atoms.size(atom) < max(sizes, default=0)
                self._name(atom, "classes" if classes else "vocab")

    def embed(self) -> None:
        """The dim of most parameters."""
        unnamed = Counter({atom: n for atom, n in self.count.items() if atom not in self.names})
        if unnamed and not self._named("embed"):
            self._name(unnamed.most_common(1)[0][0], "embed")

    def attention(self) -> None:
        """In the product that makes scores, parameters' atoms are head_dim where contracted, else heads.

        Scores hold a dim and its copy, the sequence; the product that contracts the copy has heads and the values'
        head_dim.
        """
        heads: list[int] = []
        kernels = [(dims, dims[-1:]) for dims, _ in self._forward("attention")]
        pairs = [(d, g) for d, g in [*self.products, *kernels] if self._has_copy(d)]
        for dims, gone in pairs:
            if not self._has_copy(set(dims) - set(gone)):
                continue
            lengths = {self.recorder.atoms.original(atom) for atom in dims}
            for atom in dims:
                if atom in lengths and atom not in self.names:
                    self.names[atom] = free_name(self.recorder, atom, "seq", self.names)
                elif atom in gone:
                    self._name(atom, "head_dim")
                elif atom in self.count and atom not in self.names and atom not in heads:
                    heads.append(atom)
        adjacent = {dims[i : i + 2] for dims in self.parameters for i in range(len(dims))}
        for atom in heads:
            minor = next((other for other in heads if (atom, other) in adjacent), None)
            self._name(atom, "heads" if minor is None else "kv_heads")
            if minor is not None:
                self._name(minor, "group")
        for dims, _ in pairs:
            for atom in dims:
                self._name(atom, "head_dim")

    def _has_copy(self, dims: Collection[int]) -> bool:
        return any(self.recorder.atoms.original(atom) in dims for atom in dims)

    def hidden(self) -> None:
        """Made from embed by one product, contracted into embed by another; before another such dim: experts."""
        embed = self._named("embed")
        made = {a for dims, gone in self.products if embed & set(gone) for a in dims if a not in gone}
        undone = {a for dims, gone in self.products if embed & (set(dims) - set(gone)) for a in gone}
        hidden = [a for a in self.count if a in made & undone and a not in self.names]
        for atom in hidden:
            after = (set(dims[dims.index(atom) + 1 :]) for dims in self.parameters if atom in dims)
            leads = any(rest & set(hidden) and rest & embed for rest in after)
            self._name(atom, "expert" if leads else "mlp")

    def routing(self) -> None:
        """The router's choice is over experts; beside experts, what no parameter has is their capacity."""
        experts = self._named("expert")
        if not experts:
            return
        for operation in self.recorder.operations:
            if operation.primitive == "top_k":
                for atom in self.recorder.atoms.flat(operation.contracted):
                    self._name(atom, "expert")
        for operation in self.recorder.operations:
            dims = self.recorder.atoms.flat(operation.dims)
            if operation.kind == "matmul" and experts & set(dims):
                for atom in dims:
                    origin = self.recorder.atoms.origin(atom)
                    if atom not in self.names and self.recorder.atoms.original(atom) is None:
                        name = origin if origin in ("top_k", "slot", "room") else "capacity"
                        self.names[atom] = free_name(self.recorder, atom, name, self.names)
