"""A disk that is full for one interval: a small tmpfs where one can be mounted, else a limit on files' sizes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jaxplan.run.drill.orders import Came, Order
from jaxplan.run.drill.outcome import Outcome
from jaxplan.run.drill.stage import SILENCE_S, Stage, joined

NAME = "disk-full"
WHAT = "the disk is full for one interval"
SAFE = "said before the next step but one, the older checkpoint stays, later saves succeed"
MARGIN = 1 / 4          # of a checkpoint: what a full disk still has
LIMIT = 4 << 10         # bytes a file where no disk can be mounted: metadata fit, arrays do not


def run(stage: Stage) -> Outcome:
    order = stage.order(NAME, keep=2, check_room=False)     # so that the disk itself says it
    with _small_disk(stage, order) as mounted:
        came = _filled(stage, order) if mounted else stage.train(replace(order, file_limit=(stage.late, LIMIT)))
        how = "a full tmpfs" if mounted else "a limit on files, RLIMIT_FSIZE: no tmpfs can be mounted here"
        failed = came.first("save_failed")
        after = stage.train(replace(order, last=stage.steps))
        stage.renew()       # nothing holds files there any more
    resumed_at = after.resumed_at
    if failed is None:
        said = f"no save is said to have failed ({came.said or 'the training went on'}); resumed at {resumed_at}"
        return Outcome(NAME, WHAT, SAFE, f"{how}: {said}", False)
    late = failed["step"] - stage.late
    whole = stage.restored_whole(after)
    last = stage.steps // stage.every * stage.every
    passed = late <= 2 and came.done and whole and resumed_at == last
    later = "is saved" if resumed_at == last and whole else f"is not saved either, {resumed_at} is restored"
    said = f"{how}: said at step {failed['step']} of the save at {stage.late}; step {last}, with room again, {later}"
    return Outcome(NAME, WHAT, SAFE, said, passed)


def _filled(stage: Stage, order: Order) -> Came:
    """The training, with the disk filled before the second save and emptied an interval later."""
    folder, filler = Path(order.folder), Path(order.folder) / "filler"
    paced = replace(order, pace_s=0.1)
    came = stage.worker.train(paced, SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == stage.late - 1)
    with contextlib.suppress(OSError), filler.open("wb") as file:
        free = shutil.disk_usage(folder).free
        file.write(b"\1" * max(0, free - int(MARGIN * stage.checkpoint_bytes)))
    until = stage.late + stage.every - 1
    rest = stage.worker.listen(SILENCE_S, lambda e: e["event"] == "begin" and e["step"] == until)
    filler.unlink(missing_ok=True)
    if rest.exit_code is not None or not rest.events or rest.events[-1]["event"] != "begin":
        return joined(came, rest)
    return joined(joined(came, rest), stage.worker.listen(SILENCE_S))


@contextlib.contextmanager
def _small_disk(stage: Stage, order: Order) -> Iterator[bool]:
    """The order's folder as a disk for a few checkpoints; False where nothing can be mounted."""
    folder = Path(order.folder)
    folder.mkdir(parents=True)
    size = 6 * stage.checkpoint_bytes + (1 << 20)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "jaxplan-drill", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True)
