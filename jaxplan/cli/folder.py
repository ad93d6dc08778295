"""The folder of one search: `search.json` and the plans, always whole, written again as proofs arrive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from jaxplan.cli.recording import record_of
from jaxplan.errors import InputError
from jaxplan.plan.files import write as write_plan
from jaxplan.report.search import SearchReport
from jaxplan.search.progress import Progress
from jaxplan.workload.table import Table


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a temporary file beside it, then a rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        what = f"{path} could not be written: {error.strerror}"
        raise InputError(what, "a folder with room", "--out FOLDER") from error


class RunFolder:
    """A new folder below `parent`, named by the minute; made at the first write.

    Attributes:
        plans: the plan file of each candidate that has one, by candidate.
    """

    def __init__(self, parent: Path) -> None:
        stamp = time.strftime("%m%d-%H%M")
        names = [stamp, *(f"{stamp}-{i}" for i in range(2, 1000))]
        self.path = next(parent / name for name in names if not (parent / name).exists())
        self.plans: dict[int, str] = {}

    def write(self, report: SearchReport, progress: Progress, table: Table) -> None:
        """Everything known so far: the result as JSON, every shown plan, the best as plan.json."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}", "a folder that can be made", "--out FOLDER") from error
        for i, row in enumerate(report.rows):
            name = self.path / ("plan.json" if i == 0 else f"plan-{i + 1}.json")
            write_plan(record_of(report, row, progress, table), name)
            self.plans[row.candidate] = str(name)
        write_whole(self.path / "search.json", json.dumps(report.to_json(self.shown(report)), indent=1) + "\n")

    def shown(self, report: SearchReport) -> Mapping[int, str]:
        """The plan files of the rows that the report shows."""
        return {row.candidate: self.plans[row.candidate] for row in report.rows if row.candidate in self.plans}
