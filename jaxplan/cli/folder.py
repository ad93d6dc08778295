"""The folder of one search: `search.json` and the plans, always whole, written again as proofs arrive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from jaxplan.cli.recording import record_of
from jaxplan.cli.stamped import new_folder, stamp, unwritable
from jaxplan.plan.files import write as write_plan
from jaxplan.plan.files import write_whole
from jaxplan.report.search import SearchReport
from jaxplan.search.progress import Progress
from jaxplan.workload.table import Table


class RunFolder:
    """A new folder below `parent`, named by the minute; made at the first write, never shared with another search.

    Attributes:
        path: where it is; before it is made, where it would be if nobody else were faster.
        made: whether it has been written.
        plans: the plan file of each candidate that has one, by candidate.
    """

    def __init__(self, parent: Path) -> None:
        self.parent, self.stamp = parent, stamp()
        self.path = parent / self.stamp
        self.made = False
        self.plans: dict[int, str] = {}

    def write(self, report: SearchReport, progress: Progress, table: Table) -> None:
        """Everything known so far: the result as JSON, every shown plan, the best as plan.json.

        Raises:
            InputError: the folder or a file in it cannot be written; what was there before is still whole.
        """
        if not self.made:
            self.path = new_folder(self.parent, self.stamp)
        try:
            self._write(report, progress, table)
        except BaseException:
            if not self.made:
                shutil.rmtree(self.path, ignore_errors=True)    # nothing rather than half of it
            raise
        self.made = True

    def _write(self, report: SearchReport, progress: Progress, table: Table) -> None:
        self.plans = {}
        for i, row in enumerate(report.rows):
            name = self.path / ("plan.json" if i == 0 else f"plan-{i + 1}.json")
            write_plan(record_of(report, row, progress, table), name)
            self.plans[row.candidate] = str(name)
        text = json.dumps(report.to_json(self.plans), indent=1) + "\n"
        try:
            write_whole(self.path / "search.json", text)
            self._remove_others()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def shown(self, report: SearchReport) -> Mapping[int, str]:
        """The plan files of the rows that the report shows."""
        return {row.candidate: self.plans[row.candidate] for row in report.rows if row.candidate in self.plans}

    def _remove_others(self) -> None:
        """Plan files of an earlier write whose plans have been refused since."""
        for path in self.path.glob("plan*.json"):
            if str(path) not in self.plans.values():
                path.unlink()

