"""JSON as people read and diff it: one line for what belongs together. No JAX here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 120


def render(value: Any, indent: int = 0, used: int = 0) -> str:
    """Plain data as JSON text, in the order of its keys.

    A list's object without objects in it (an array, a ledger's entry) is one line, so that a difference
    names it whole. Anything else is one line where that fits into `WIDTH` columns and holds no object.

    Args:
        indent: columns before the line that `value` stands on.
        used: columns of that line that its key takes.

    Raises:
        ValueError: a number is not finite (JSON has no such number).
    """
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, Mapping | list | tuple) or not value:
        return flat
    plain = not any(isinstance(member, Mapping) for member in _members(value))
    if plain and indent + used + len(flat) <= WIDTH:
        return flat
    inner, pad, end = indent + 1, " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, Mapping):
        keys = [f"{json.dumps(str(key), ensure_ascii=False)}: " for key in value]
        lines = [pad + key + render(v, inner, len(key)) for key, v in zip(keys, value.values(), strict=True)]
        return "{\n" + ",\n".join(lines) + end + "}"
    return "[\n" + ",\n".join(pad + _item(member, inner) for member in value) + end + "]"


def _item(value: Any, indent: int) -> str:
    if isinstance(value, Mapping) and not any(isinstance(member, Mapping) for member in value.values()):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return render(value, indent)


def _members(value: Mapping[str, Any] | Sequence[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value
