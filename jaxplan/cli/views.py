"""What TensorBoard's Plan tab shows of plans, beside the results: every candidate, explanations, steps, programs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxplan.cli.explain import report_of
from jaxplan.cli.stamped import unwritable
from jaxplan.compile import artifacts
from jaxplan.compile.evidence import Evidence
from jaxplan.plan.files import write_whole
from jaxplan.plan.record import PlanRecord
from jaxplan.report.candidates import candidates_json
from jaxplan.report.explain_json import explain_json
from jaxplan.search.progress import Progress
from jaxplan.workload.table import Table


def write_candidates(folder: Path, progress: Progress, table: Table, plans: Mapping[int, str]) -> None:
    """`candidates.json`: every plan that fits.

    Args:
        plans: the plan file of each candidate that has one.

    Raises:
        InputError: the folder cannot be written.
    """
    named = {candidate: Path(plan).name for candidate, plan in plans.items()}
    with _room(folder):
        write_whole(folder / "candidates.json", json.dumps(candidates_json(progress, table, named)))


def write_views(path: Path, number: int, record: PlanRecord, table: Table, compiled: Evidence | None) -> None:
    """`explain.json`, `timeline.json` and the compiled program, beside the file of plan `number` (from 1) of its run.

    Raises:
        InputError: the folder cannot be written, or the plan's evidence is not what a search writes.
    """
    name = f"explain-{number}.json" if number > 1 else "explain.json"
    with _room(path.parent):
        write_whole(path.parent / name, json.dumps(explain_json(report_of(path, record, table))))
        artifacts.copy_to(path.parent, compiled.folder if compiled is not None else None, number)


@contextlib.contextmanager
def _room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error
