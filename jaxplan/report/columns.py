"""Plain text in columns and paragraphs, no wider than it may be. Nothing is computed here."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

GAP = 2
INDENT = "  "
NARROWEST = 12      # a folded column keeps at least that many characters


def columns(rows: Sequence[Sequence[str]], width: int, right: Collection[int] = (), indent: str = INDENT) -> list[str]:
    """Rows as lines of aligned columns; where they are too wide the widest column that is not a figure is folded.

    Args:
        right: the columns that are aligned to the right: figures, which are never folded.
    """
    if not rows:
        return []
    widths = [max(1, *map(len, cells)) for cells in zip(*rows, strict=True)]
    excess = len(indent) + sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        foldable = [i for i in range(len(widths)) if i not in right and widths[i] > NARROWEST]
        if not foldable:
            break
        widest = max(foldable, key=lambda i: widths[i])
        rest = max([widths[i] for i in foldable if i != widest], default=NARROWEST)
        less = min(excess, max(1, widths[widest] - max(rest, NARROWEST)))
        widths[widest] -= less
        excess -= less
    return [line for row in rows for line in _row(row, widths, right, indent)]


def _row(row: Sequence[str], widths: Sequence[int], right: Collection[int], indent: str) -> list[str]:
    cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
    lines = []
    for i in range(max(map(len, cells))):
        parts = [cell[i] if i < len(cell) else "" for cell in cells]
        aligned = [p.rjust(n) if c in right else p.ljust(n) for c, (p, n) in enumerate(zip(parts, widths, strict=True))]
        lines.append((indent + (" " * GAP).join(aligned)).rstrip())
    return lines


def paragraph(text: str, width: int, indent: str = "") -> list[str]:
    """A sentence or more, folded at words; lines after the first stand two characters further in."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + INDENT, break_on_hyphens=False
    )
