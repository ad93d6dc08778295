"""One line on a run for the list of runs: its model, its machine, its best figure. Read once per version of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from jaxplan.profile.tensorboard.runs import Document, Run

LARGEST_BYTES = 4 * 2**20   # of a document that is read for one line (chosen: search.json has some 10 kB a plan)
Summary = dict[str, Any]


class Summaries:
    """What was read, by file and version."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Summary]] = {}

    def of(self, run: Run) -> Summary:
        """`model`, `machine`, `label`, `step_time_s` and its `source`: as many of them as the documents say."""
        found: Summary = {}
        for name, read in (("search.json", _of_search), ("run.json", _of_run), ("plan.json", _of_plan)):
            if document := run.documents.get(name):
                found = self._read(document, read) | found      # what an earlier document says stands
        return found

    def _read(self, document: Document, read: Any) -> Summary:
        key = str(document.path)
        version, kept = self._kept.get(key, ("", {}))
        if version != document.version:
            kept = _careful(document, read)
            self._kept[key] = (document.version, kept)
        return kept


def _careful(document: Document, read: Any) -> Summary:
    """A file that is half written, or no JSON, or has other keys, has no summary; opened, the tab says why."""
    if document.nbytes > LARGEST_BYTES:
        return {}
    try:
        found = read(json.loads(document.path.read_bytes(), parse_constant=_no_constant))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if _plain(value)}


def _plain(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _of_search(data: Mapping[str, Any]) -> Summary:
    found = {"model": data["workload"]["model"]["name"], "machine": data["machine"]["name"]}
    if data["plans"]:
        best = data["plans"][0]
        label = " ".join(f"{axis}={size}" for axis, size in best["mesh"].items() if size > 1)
        time = best["step_time_s"]
        found |= {"label": label or "one device", "step_time_s": time["value"], "source": time["source"]}
    return found


def _of_plan(data: Mapping[str, Any]) -> Summary:
    label = " ".join(f"{axis['axis']}={axis['size']}" for axis in data["mesh"] if axis["size"] > 1)
    found = {"model": data["workload"]["model"]["name"], "machine": data["machine"]["name"]}
    found["label"] = label or "one device"
    if time := data.get("step_time_s"):     # null in a plan that nothing was estimated of
        found |= {"step_time_s": time["value"], "source": time["parts"][0]["source"]}
    return found


def _of_run(data: Mapping[str, Any]) -> Summary:
    return {"label": data["label"], "step_time_s": data["step_time_s"]["median"], "source": "measured"}
