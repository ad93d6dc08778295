"""A persistent cache of what compilers and traces answered. No JAX here.

One JSON file an entry, named by the hash of everything that decided the answer. A file is written whole (a
temporary file, then a rename), so readers and other writers never see half of one; whatever cannot be read is
a miss, and whatever cannot be written is a warning.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxplan.plan.files import write_whole

SCHEMA = "jaxplan.cache/1"
PACKAGE = Path(__file__).resolve().parents[1]


def digest(data: Any) -> str:
    """A hash of plain data: equal data, equal hash, whatever the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def source_hash(*parts: str) -> str:
    """Hash of our own sources in these folders or files of the package: another program, another hash."""
    total = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            total.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def default_root() -> Path | None:
    """Where the cache lies: `JAXPLAN_CACHE` (`off` for none), else the user's cache folder."""
    chosen = os.environ.get("JAXPLAN_CACHE")
    if chosen:
        return None if chosen.lower() == "off" else Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "jaxplan"


@dataclass
class Cache:
    """Entries under `root` (None: nothing is kept), by kind and key.

    Attributes:
        warnings: what went wrong in writing, each once; for the caller to show.
    """

    root: Path | None = field(default_factory=default_root)
    warnings: list[str] = field(default_factory=list)

    def path(self, kind: str, key: str) -> Path | None:
        return None if self.root is None else self.root / kind / key[:2] / f"{key}.json"

    def folder(self, kind: str, key: str) -> Path | None:
        """Where files that belong to an entry lie; nobody has made it yet."""
        path = self.path(kind, key)
        return None if path is None else path.with_suffix("")

    def get(self, kind: str, parts: Mapping[str, Any]) -> Any | None:
        """The value stored under these parts, or None: never stored, unreadable, damaged, another version."""
        key = digest(parts)
        path = self.path(kind, key)
        if path is None:
            return None
        try:
            entry = json.loads(path.read_bytes())
            value = entry["value"]
            right = (entry["schema"], entry["key"], entry["digest"]) == (SCHEMA, key, digest(value))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return value if right else None

    def put(self, kind: str, parts: Mapping[str, Any], value: Any) -> None:
        """Store a value. A full disk or a read-only folder is a warning, never an error."""
        key = digest(parts)
        path = self.path(kind, key)
        if path is None:
            return
        entry = {"schema": SCHEMA, "key": key, "digest": digest(value), "parts": dict(parts), "value": value}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(entry))
        except OSError as error:
            warning = f"the cache in {self.root} cannot be written ({error.strerror or error})"
            if warning not in self.warnings:
                self.warnings.append(warning)

    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(_sizes(self.root.rglob("*.*"))) if self.root is not None else 0


def _sizes(paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        with contextlib.suppress(OSError):      # another process may have replaced it
            yield path.stat().st_size
