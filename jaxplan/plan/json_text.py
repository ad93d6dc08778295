"""JSON as people read and diff it: one leaf of a list a line, short lists and objects on one line. No JAX here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 120


def render(value: Any, indent: int = 0, used: int = 0) -> str:
    """Plain data as JSON text, in the order of its keys; what fits into `WIDTH` columns stays on one line.

    Args:
        indent: columns before continuation lines.
        used: columns of the first line that are taken already.

    Raises:
        ValueError: a number is not finite (JSON has no such number).
    """
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, Mapping | list | tuple) or not value:
        return flat
    nested = any(isinstance(v, Mapping) for v in _members(value))
    if not (nested and isinstance(value, list | tuple)) and used + len(flat) <= WIDTH - indent and indent > 0:
        return flat
    inner = indent + 1
    pad = " " * inner
    if isinstance(value, Mapping):
        heads = [f"{json.dumps(str(key), ensure_ascii=False)}: " for key in value]
        lines = [pad + h + render(v, inner, len(h)) for h, v in zip(heads, value.values(), strict=True)]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + render(v, inner) for v in value) + "\n" + " " * indent + "]"


def _members(value: Mapping[str, Any] | Sequence[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value
