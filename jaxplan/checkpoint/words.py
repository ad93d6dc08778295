"""Words of messages: the first few of many, the first line of an error. No JAX."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_CHARACTERS = 200
WRAPPED = "Encountered error while reading array"
STORAGE = re.compile(r' (?:at|of|in OCDBT database at) local file "[^"]*"|Error opening "\w+" driver: ')


def listed(names: Sequence[object], most: int = 5) -> str:
    """The first few, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(map(str, names[:most])) + rest


def first_line(error: BaseException) -> str:
    """The first line of what an error says, short enough for a message.

    orbax wraps what the storage said of an array in an error that says nothing; the storage says the folder, which is
    known, again and again.
    """
    while WRAPPED in str(error) and error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = STORAGE.sub("", text)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
