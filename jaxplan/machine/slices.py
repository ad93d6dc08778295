"""Which boxes of chips are TPU slices, and which of their axes close into rings. No JAX here.

v5e and v6e: a few shapes of at most 16x16, of which an axis wraps only at its full length of 16. v4, v5p,
tpu7x: a few shapes below a 4x4x4 cube, which are meshes, and beyond them anything made of whole cubes, whose
axes are all closed by optical switches (scaling book, `tpus.md`; Jouppi et al. 2023, arXiv:2304.01433,
section 2).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from jaxplan.errors import InputError

Shape = tuple[int, ...]

LISTED_CUBES = 16  # where no pod bounds a box, the list stops at axes of that many cubes


@dataclass(frozen=True)
class SliceRule:
    """The legal slices of one TPU generation.

    Attributes:
        small: legal shapes that are listed one by one, axes ascending; any order of the axes is legal.
        wrap_length: the length at which an axis wraps (0: the rule is by cubes).
        cube: edge of the cube that larger slices are made of (0: only listed shapes).
        pod: axes of the largest box, ascending; empty where only `max_chips` bounds it.
        max_chips: chips of the largest slice.
    """

    family: str
    small: tuple[Shape, ...]
    max_chips: int
    wrap_length: int = 0
    cube: int = 0
    pod: Shape = ()

    def __post_init__(self) -> None:
        if any(n < 1 for shape in self.small for n in shape):
            raise ValueError(f"{self.family}: axes of slices must be positive, got {self.small}")
        if bool(self.wrap_length) == bool(self.cube):
            raise ValueError(
                f"{self.family}: give either wrap_length or cube, got {self.wrap_length} and {self.cube}"
            )
        if len({len(shape) for shape in self.small}) != 1:
            raise ValueError(
                f"{self.family}: all listed slices must have the same number of axes, got {self.small}"
            )

    @property
    def dims(self) -> int:
        return len(self.small[0])

    def legal(self, shape: Shape) -> bool:
        """Whether `shape` is a slice, its axes in any order."""
        ordered = tuple(sorted(shape))
        if ordered in {tuple(sorted(s)) for s in self.small}:
            return True
        return self._made_of_cubes(ordered)

    def _made_of_cubes(self, ordered: Shape) -> bool:
        if not self.cube or len(ordered) != self.dims or any(n % self.cube for n in ordered):
            return False
        inside = not self.pod or all(n <= bound for n, bound in zip(ordered, self.pod, strict=True))
        return inside and math.prod(ordered) <= self.max_chips

    def wraps(self, shape: Shape) -> tuple[bool, ...]:
        """Which axes of a legal slice close into rings."""
        if self.cube:
            return (self._made_of_cubes(tuple(sorted(shape))),) * len(shape)
        return tuple(n == self.wrap_length for n in shape)

    def shapes(self) -> tuple[Shape, ...]:
        """All legal slices, axes ascending, by chips. Boxes longer than 16 times their width are left out of
        the list."""
        found = set(self.small)
        if self.cube:
            edge = max(self.pod) if self.pod else self.cube * LISTED_CUBES
            lengths = range(self.cube, edge + 1, self.cube)
            boxes = itertools.combinations_with_replacement(lengths, self.dims)
            found |= {box for box in boxes if self._made_of_cubes(box)}
        return tuple(sorted(found, key=lambda s: (math.prod(s), max(s), s)))

    def of_chips(self, chips: int) -> Shape | None:
        """The most cubic slice of that many chips."""
        same = [shape for shape in self.shapes() if math.prod(shape) == chips]
        return min(same, key=lambda s: (max(s), s), default=None)

    def check(self, shape: Shape, chip_name: str) -> Shape:
        """`shape`, with axes of length 1 added where it has too few (2x2 is 2x2x1).

        Raises:
            InputError: no such slice; names the nearest ones.
        """
        padded = shape + (1,) * (self.dims - len(shape))
        while len(padded) > self.dims and padded[-1] == 1:
            padded = padded[:-1]
        if len(padded) == self.dims and self.legal(padded):
            return padded
        raise InputError(
            f"{'x'.join(map(str, shape))} is not a {chip_name} slice. {self._near(math.prod(shape))}",
            suggestion=f"`jaxplan catalog machines {self.family}`",
        )

    def _near(self, chips: int) -> str:
        best: dict[int, Shape] = {}
        for shape in self.shapes():
            count = math.prod(shape)
            best[count] = min(best.get(count, shape), shape, key=lambda s: (max(s), s))
        below = [n for n in best if n <= chips][-1:]
        above = [n for n in best if n > chips][:1]
        words = ", ".join(f"{'x'.join(map(str, best[n]))} ({n})" for n in [*below, *above])
        return f"Slices near {chips} chips: {words}"
