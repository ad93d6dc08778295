"""A table as a value: headings and cells, rendered for a terminal, for a pipe, or as markdown. Nothing is computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table as RichTable

RULED_GAP = 3       # columns between two columns with a ruled head
NARROWEST = 12      # a folded column keeps at least that many characters
TAG = re.compile(r"<(?=[A-Za-z/!])")


@dataclass(frozen=True)
class Grid:
    """Cells under headings.

    Attributes:
        title: what it shows, one line.
        right: the columns that are aligned to the right: figures.
        note: how to read it, below the table; or empty.
        optional: the columns that a narrow terminal does without, the least needed first.
    """

    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    note: str = ""
    optional: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = [row for row in self.body if len(row) != len(self.head)]
        if wrong:
            raise ValueError(f"{self.title}: {len(self.head)} headings, a row of {len(wrong[0])} cells: {wrong[0]}")

    def first(self, count: int) -> Grid:
        """The same with its first rows only, and how many are left out."""
        if len(self.body) <= count:
            return self
        rest = f"{len(self.body) - count:,} more rows left out."
        return replace(self, body=self.body[:count], note=f"{self.note} {rest}".strip())

    def narrowed(self, width: int, gap: int = RULED_GAP) -> Grid:
        """Without as many of the optional columns as it takes for figures, and some of each text, to have room."""
        widths = [max(map(len, cells)) for cells in zip(self.head, *self.body, strict=True)]
        needed = [size if i in self.right else min(size, NARROWEST) for i, size in enumerate(widths)]
        kept = list(range(len(self.head)))
        for column in self.optional:
            if sum(needed[i] + gap for i in kept) - gap <= width:
                break
            kept.remove(column)
        return Grid(
            self.title,
            tuple(self.head[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.body),
            tuple(place for place, i in enumerate(kept) if i in self.right),
            self.note,
        )


def rich_table(grid: Grid, plain_text: bool) -> RichTable:
    """For a terminal a ruled head; for a pipe columns alone. Text is folded, figures are not."""
    table = RichTable(box=None if plain_text else box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(grid.head):
        figure = i in grid.right
        table.add_column(name, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in grid.body:
        table.add_row(*row)
    return table


def markdown(grid: Grid, level: int = 3) -> list[str]:
    """A heading, a table of GitHub's markdown, the note."""
    rule = ["---:" if i in grid.right else "---" for i in range(len(grid.head))]
    lines = [f"{'#' * level} {grid.title}", "", _line(grid.head), _line(rule)]
    lines += [_line([_escaped(cell) for cell in row]) for row in grid.body]
    return [*lines, "", *([grid.note, ""] if grid.note else [])]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(cell: str) -> str:
    return " ".join(TAG.sub("&lt;", cell.replace("|", "\\|")).split())
