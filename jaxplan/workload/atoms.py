"""Atoms: the smallest pieces of tensor dimensions, and which of them are the same. No JAX here.

A tensor's dimension is a *sequence of atoms*, major first: the query heads of grouped-query attention are (kv_heads,
group), a dimension of size 1 is the empty sequence. Atoms are unified by a union-find; unifying two sequences of
equal product but different cuts splits the larger atom, and a split holds for every tensor that has it.

Two atoms of one tensor are *enemies*: they never become one. This keeps the two sequence dims of attention apart.
Where one tensor would hold an atom twice, the second is the atom's *copy*: one for the whole program, so that every
layer's attention has the same second sequence dim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from jaxplan.workload.table import DimIds, Shape


class Atoms:
    """A growing set of atoms with their sizes, splits, enemies and copies."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._pieces: list[tuple[int, int] | None] = []
        self._enemies: list[set[int]] = []
        self._origin: list[str] = []
        self._copies: list[tuple[int, int]] = []  # (copy, original)

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, size: int, origin: str = "") -> int:
        """A new atom; `origin` says in one word where it came from."""
        if size < 2:
            raise ValueError(f"an atom's size must be at least 2 (a dimension of 1 is the empty sequence), got {size}")
        self._parent.append(len(self._parent))
        self._size.append(int(size))
        self._pieces.append(None)
        self._enemies.append(set())
        self._origin.append(origin)
        return len(self._parent) - 1

    def sequence(self, size: int, origin: str = "") -> DimIds:
        """A new dimension of that size: one atom, or none where the size is 1 (or 0: nothing to shard)."""
        return (self.new(size, origin),) if size > 1 else ()

    def fresh(self, sizes: Iterable[int], origin: str = "") -> Shape:
        """A new tensor shape whose atoms are all enemies."""
        return self.distinct(tuple(self.sequence(size, origin) for size in sizes))[0]

    def find(self, atom: int) -> int:
        """The representative of the atom's class."""
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = parent[parent[atom]]
            atom = parent[atom]
        return atom

    def size(self, atom: int) -> int:
        return self._size[atom]

    def origin(self, atom: int) -> str:
        return self._origin[self.find(atom)]

    def elements(self, sequence: Iterable[int]) -> int:
        """Product of the atoms' sizes."""
        return math.prod(self._size[atom] for atom in sequence)

    def leaves(self, sequence: Iterable[int]) -> DimIds:
        """The sequence as representatives that are not split any further."""
        out: list[int] = []
        for atom in sequence:
            root = self.find(atom)
            pieces = self._pieces[root]
            if pieces is None:
                out.append(root)
            else:
                out.extend(self.leaves(pieces))
        return tuple(out)

    def resolve(self, shape: Shape) -> Shape:
        """Every dimension of the shape as leaves."""
        return tuple(self.leaves(sequence) for sequence in shape)

    def flat(self, shape: Iterable[Sequence[int]]) -> DimIds:
        """All leaves of a shape in a row."""
        return self.leaves(atom for sequence in shape for atom in sequence)

    def split(self, atom: int, major: int) -> tuple[int, int]:
        """Cut an atom into (major, size / major); the pieces inherit its enemies."""
        atom = self.find(atom)
        if self._pieces[atom] is not None or major < 2 or self._size[atom] % major or major == self._size[atom]:
            raise ValueError(f"cannot cut an atom of size {self._size[atom]} into a major part of {major}")
        first = self.new(major, self._origin[atom])
        second = self.new(self._size[atom] // major, self._origin[atom])
        self._pieces[atom] = (first, second)
        self.set_enemies(first, second)
        for enemy in self.leaves(tuple(self._enemies[atom])):
            for piece in (first, second):
                if piece != enemy:
                    self.set_enemies(piece, enemy)
        return first, second

    def set_enemies(self, a: int, b: int) -> None:
        """Declare that two atoms never become one."""
        a, b = self.find(a), self.find(b)
        self._enemies[a].add(b)
        self._enemies[b].add(a)

    def are_enemies(self, a: int, b: int) -> bool:
        a, b = self.find(a), self.find(b)
        return b in self._enemies[a] or any(self.find(enemy) == b for enemy in self._enemies[a])

    def union(self, a: int, b: int) -> bool:
        """Make two leaves one atom; False where they are enemies."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if self._size[a] != self._size[b]:
            raise ValueError(f"atoms of sizes {self._size[a]} and {self._size[b]} cannot be one")
        if self.are_enemies(a, b):
            return False
        self._parent[b] = a
        for enemy in tuple(self._enemies[b]):
            self.set_enemies(a, enemy)
        return True

    def unify(self, x: Sequence[int], y: Sequence[int]) -> bool:
        """Make two sequences of equal product the same atoms, splitting where their cuts differ.

        Returns False where some pair was refused: enemies, or sizes of which neither divides the other.
        """
        accepted = True
        left, right = list(self.leaves(x)), list(self.leaves(y))
        while left and right:
            a, b = left[0], right[0]
            size_a, size_b = self._size[a], self._size[b]
            if size_a == size_b:
                accepted &= self.union(a, b)
                left, right = left[1:], right[1:]
            elif size_a > size_b and size_a % size_b == 0:
                self.split(a, size_b)
            elif size_b > size_a and size_b % size_a == 0:
                self.split(b, size_a)
            else:
                return False
            left, right = list(self.leaves(left)), list(self.leaves(right))
        return accepted and not left and not right

    def unify_shapes(self, x: Iterable[Sequence[int]], y: Iterable[Sequence[int]]) -> bool:
        """Unify dimension by dimension; a dimension of size 1 agrees with anything (it is broadcast)."""
        accepted = True
        for a, b in zip(x, y, strict=True):
            if a and b:
                accepted &= self.unify(a, b)
        return accepted

    def copy(self, atom: int, taken: Collection[int] = ()) -> int:
        """The program's copy of an atom that is not among `taken`."""
        atom = self.find(atom)
        for copied, original in self._copies:
            root = self.find(copied)
            if self.find(original) == atom and self._pieces[root] is None and root not in taken:
                return root
        made = self.new(self._size[atom], "copy")
        self._copies.append((made, atom))
        return made

    def original(self, atom: int) -> int | None:
        """The atom that this one is a copy of."""
        atom = self.find(atom)
        return next((self.find(o) for c, o in self._copies if self.find(c) == atom and self.find(o) != atom), None)

    def restore(self, shape: Shape) -> Shape:
        """Turn copies whose original is not in the tensor back into it (the key's gradient lies along seq)."""
        present = set(self.flat(shape))

        def plain(atom: int) -> int:
            original = self.original(atom)
            # an original that was split since has no single leaf to return to
            if original is None or self._pieces[original] is not None or original in present:
                return atom
            return original

        return tuple(tuple(plain(atom) for atom in self.leaves(sequence)) for sequence in shape)

    def agree(self, x: Sequence[int], y: Sequence[int], taken: Collection[int] = ()) -> DimIds:
        """How to read two sequences whose unification was refused: as originals, unless `taken` in this operation."""
        out = []
        for a, b in zip(self.leaves(x), self.leaves(y), strict=False):
            if a != b and b not in taken and (self.original(a) == b or (a in taken and self.original(b) != a)):
                out.append(b)
            else:
                out.append(a)
        return tuple(out)

    def distinct(self, shape: Shape) -> tuple[Shape, bool]:
        """Make all atoms of one tensor enemies; an atom that comes twice is replaced by its copy.

        Returns the shape and whether anything was replaced.
        """
        seen: list[int] = []
        out, changed = [], False
        for sequence in shape:
            dimension = []
            for leaf in self.leaves(sequence):
                atom = leaf
                if atom in seen:
                    atom, changed = self.copy(leaf, seen), True
                seen.append(atom)
                dimension.append(atom)
            out.append(tuple(dimension))
        for i, a in enumerate(seen):
            for b in seen[:i]:
                self.set_enemies(a, b)
        return tuple(out), changed

    def regroup(self, shape: Shape, sizes: Sequence[int]) -> Shape | None:
        """The shape reshaped to `sizes`, splitting atoms where a new cut falls inside one; None where it cannot be."""
        rest = list(self.flat(shape))
        out = []
        for size in sizes:
            product, dimension = 1, []
            while product < size:
                if not rest:
                    return None
                atom = rest.pop(0)
                if size % (product * self._size[atom]) == 0:
                    dimension.append(atom)
                    product *= self._size[atom]
                    continue
                missing = size // product
                if size % product or self._size[atom] % missing:
                    return None
                major, minor = self.split(atom, missing)
                dimension.append(major)
                rest.insert(0, minor)
                product = size
            out.append(tuple(dimension))
        return self.resolve(tuple(out))
