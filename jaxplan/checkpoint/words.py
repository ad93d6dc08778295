"""Words of messages: the first few of many, the first line of an error. No JAX."""

from __future__ import annotations

from collections.abc import Sequence

MOST_CHARACTERS = 200


def listed(names: Sequence[object], most: int = 5) -> str:
    """The first few, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(map(str, names[:most])) + rest


def first_line(error: BaseException) -> str:
    """The first line of what an error says, short enough for a message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
