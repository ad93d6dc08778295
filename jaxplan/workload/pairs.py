"""Roles that any network of weights has, whatever it computes: hidden dims, and dims to store by. No JAX here.

After `workload.roles`, which knows transformers. Two rules, both read off the forward products:

- a hidden dim is made by weights that contract the same dims, is contracted by one other weight, and stands in no
  other matrix: no residual stream or loss can see it. Such weights can be column- and row-parallel (Shoeybi et al.
  2019, arXiv:1909.08053, section 3), so it is named `mlp`. A weight has one such dim at most; larger ones choose first.
- fully-sharded storage needs a dim in every matrix. Where `embed` is not in a matrix, another dim of it is named
  `embed`, too, as long as that leaves fewer elements on each device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from jaxplan.workload.labels import Recorder
from jaxplan.workload.table import DimIds

TENSOR = ("heads", "kv_heads", "mlp", "vocab", "expert")     # names that tensor or expert parallelism shards
STORED = "embed"


class Pairs:
    """Names atoms of matrices that have no name yet.

    Args:
        parameters: the leaf atoms of each parameter, in order.
        names: names so far; extended in place.
    """

    def __init__(self, recorder: Recorder, parameters: Sequence[DimIds], names: dict[int, str]) -> None:
        self.recorder, self.names = recorder, names
        self.stacked = {atom for atom, name in names.items() if name == "layers"}
        self.matrices = [dims for dims in parameters if len(set(dims) - self.stacked) > 1]
        self.products = [
            (frozenset(recorder.atoms.flat(op.dims)), frozenset(recorder.atoms.flat(op.contracted)))
            for op in recorder.operations
            if op.kind == "matmul" and op.phase == "forward"
        ]

    def assign(self) -> None:
        self.hidden()
        self.stored()

    def hidden(self) -> None:
        """Names hidden dims, those of the largest weights first."""
        atoms = dict.fromkeys(atom for dims in self.matrices for atom in dims if atom not in self.names)
        for atom in sorted(atoms, key=self._elements, reverse=True):
            holders = [dims for dims in self.matrices if atom in dims]
            taken = any(self.names.get(other) in TENSOR for dims in holders for other in dims)
            if not taken and self._is_hidden(atom, holders):
                self.names[atom] = "mlp"

    def _is_hidden(self, atom: int, holders: Sequence[DimIds]) -> bool:
        makers, users, sources = set(), set(), set()
        for number, weight in enumerate(set(dims) - self.stacked for dims in holders):
            for dims, gone in self.products:
                if gone <= weight <= dims:      # a product with this weight
                    (users if atom in gone else makers).add(number)
                    sources |= {gone} if atom not in gone else set()
        return len(users) == len(sources) == 1 and not users & makers and len(users | makers) == len(holders)

    def _elements(self, atom: int) -> int:
        return sum(self._size(dims) for dims in self.matrices if atom in dims)

    def _size(self, dims: DimIds) -> int:
        return math.prod(map(self.recorder.atoms.size, dims))

    def stored(self) -> None:
        """Names dims `embed` until no further one saves memory."""
        if STORED not in self.names.values():
            return
        while True:
            lacking = [dims for dims in self.matrices if not any(self.names.get(a) == STORED for a in dims)]
            held = sum(map(self._size, self.matrices)) - sum(map(self._size, lacking))
            count = Counter(atom for dims in lacking for atom in set(dims) if atom not in self.names)
            gained = {a: sum(self._size(dims) for dims in lacking if a in dims) for a in count}
            saved = {atom: self._saved(held + more, atom) for atom, more in gained.items()}
            best = max(saved, key=lambda atom: saved[atom], default=None)
            if best is None or saved[best] <= self._saved(held):
                return
            self.names[best] = STORED

    def _saved(self, held: int, *more: int) -> float:
        """Elements that sharding can take off a device: dims of one name are divided alike, by a common divisor."""
        atoms = [atom for atom, name in self.names.items() if name == STORED]
        return held * (1 - 1 / math.gcd(*map(self.recorder.atoms.size, (*atoms, *more))))
