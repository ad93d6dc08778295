"""Saving and restoring a training state so that a step which can be restored always stays. Imports JAX and orbax."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxplan.checkpoint import logs
from jaxplan.checkpoint.digest import digests
from jaxplan.checkpoint.folder import Folder
from jaxplan.checkpoint.position import Position
from jaxplan.checkpoint.record import StepRecord
from jaxplan.checkpoint.restore import RECORD, STATE, DamagedError, Restored, agree, proven, read_record
from jaxplan.checkpoint.state import flat, host_bytes, mesh_of
from jaxplan.checkpoint.words import first_line, listed
from jaxplan.errors import CheckpointError, InputError, NotFiniteError
from jaxplan.plan.record import installed_versions
from jaxplan.units import format_bytes


class Checkpointer:
    """The checkpoints of one run, in one folder. Every method is called by every process.

    Args:
        folder: where they are; made if need be.
        keep: how many good steps stay, the newest; None keeps all. The last good one always stays.
        asynchronous: write in the background; `check` says what came of it.
        read_only: restore only; nothing in the folder is moved or cleaned (an evaluation beside the training).
        check_room: refuse a save for which the disk has no room before it starts.
        timeout_s: for a save in the background.
        layer_order: `plan.layer_order`, if the plan is a circular pipeline: its layers are restored to no other order.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        asynchronous: bool = True,
        read_only: bool = False,
        check_room: bool = True,
        timeout_s: int = 600,
        layer_order: Sequence[int] = (),
    ) -> None:
        if keep is not None and keep < 1:
            raise InputError(f"keep={keep}", "at least 1, or None for all")
        logs.quieten()
        self.folder = Folder.of(folder, create=not read_only)
        self._keep, self._asynchronous, self._read_only, self._check_room = keep, asynchronous, read_only, check_room
        self._layer_order = tuple(layer_order)
        self._pending: StepRecord | None = None
        self._cleaned = False
        handler = ocp.CompositeCheckpointHandler(
            **{STATE: ocp.StandardCheckpointHandler(), RECORD: ocp.JsonCheckpointHandler()}
        )
        self._orbax = ocp.AsyncCheckpointer(handler, timeout_secs=timeout_s)

    def save(
        self,
        step: int,
        state: Any,
        *,
        loss: Any = None,
        position: Position | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves a state; returns when it may be donated. A step that is there with the same bits is left as it is.

        Raises:
            CheckpointError: this save, or the one before in the background, failed; older steps stand.
            NotFiniteError: the state or the loss is NaN or infinite: it would be restored as the last good one.
            InputError: the state cannot be saved; newer steps, or another state of this step, are there.
        """
        if self._read_only:
            raise InputError("save() of a read-only checkpointer", "one without read_only=True")
        self.wait()
        now = flat(state)
        sums, finite = digests(now.arrays)
        lost = None if loss is None else float(loss)
        bad = [leaf.path for leaf, good in zip(now.leaves, finite, strict=True) if not good]
        bad += ["the loss"] if lost is not None and not math.isfinite(lost) else []
        if bad:
            raise NotFiniteError(f"step {step} is not saved: {listed(bad)} not finite. {self._stands()}")
        record = StepRecord(
            step, now.digested(sums), lost, position, mesh_of(now.arrays), installed_versions(), dict(notes or {}),
            self._layer_order,
        )  # fmt: skip
        if self._is_there(record):
            return
        self._begin(now.arrays, state, record)

    def check(self) -> None:
        """Says what became of the save in the background; cheap enough for every step.

        Raises:
            CheckpointError: it failed; older steps stand.
        """
        if self._pending is None:
            return
        try:
            self._orbax.check_for_errors()
        except Exception as error:
            raise self._failed(self._pending.step, error) from error
        if ocp.utils.is_checkpoint_finalized(self.folder.step(self._pending.step)):
            self._settle()

    def wait(self) -> None:
        """Waits for the save in the background.

        Raises:
            CheckpointError: it failed; older steps stand.
        """
        if self._pending is None:
            return
        try:
            self._orbax.wait_until_finished()
        except Exception as error:
            raise self._failed(self._pending.step, error) from error
        self._settle()

    def restore(self, target: Any, step: int | None = None, *, cast: bool = False) -> Restored | None:
        """The newest step that can be proven, as the target asks for it; None where there is no step at all.

        Newer ones that are damaged are moved to `quarantine`, once an older one was proven.

        Args:
            target: the state, or ShapeDtypeStructs with shardings on today's mesh.
            step: that one and no other.
            cast: take other dtypes than the saved ones.

        Raises:
            InputError: a step is whole, but of another model, optimizer or dtype: the first differing arrays; or it may
                not be read; or there is no such step.
            CheckpointError: steps are there and none can be used; nothing was moved.
        """
        self.wait()
        there = self._shared(self.steps())
        if step is not None and step not in there:
            raise InputError(f"step {step} of {self.folder.path}", f"one of the steps {listed(there)}")
        asked = there[::-1] if step is None else [step]
        passed: list[tuple[int, str]] = []
        for candidate in asked:
            try:
                found = proven(self.folder, candidate, target, cast, self._layer_order)
            except DamagedError as error:
                passed.append((candidate, str(error)))
                continue
            notes = (*found.notes, *self._move_away(passed))
            return Restored(found.step, found.state, found.record, tuple(passed), notes)
        if not passed:
            return None
        said = listed([f"step {number}: {why}" for number, why in passed])
        raise CheckpointError(f"no step in {self.folder.path} can be used ({said}). Nothing was moved or deleted.")

    def rollback(self, step: int, why: str = "rolled back") -> list[int]:
        """Moves all steps after that one to `quarantine`, so that they can be saved again; which they are.

        Raises:
            InputError: there is no such step that is good.
            CheckpointError: the later ones cannot be moved.
        """
        self.wait()
        if step not in self.good_steps():
            raise InputError(f"step {step} to roll back to", f"one of the good steps {self.good_steps()}")
        later = [(number, f"{why} to step {step}") for number in self._shared(self.steps()) if number > step]
        problems = self._move_away(later)
        if problems:
            raise CheckpointError(f"not rolled back: {listed(problems)}")
        return [number for number, _ in later]

    def steps(self) -> list[int]:
        """Every step that has a folder, whole or not, ascending."""
        return self.folder.steps()

    def good_steps(self) -> list[int]:
        """Steps that were committed with their record, ascending; their arrays are proven when they are restored."""
        return [step for step in self.steps() if self._record(step) is not None]

    def close(self) -> None:
        """Waits for the save in the background, and ends.

        Raises:
            CheckpointError: it failed; older steps stand.
        """
        try:
            self.wait()
        finally:
            self._orbax.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def _is_there(self, record: StepRecord) -> bool:
        ahead = [step for step in self._shared(self.steps()) if step >= record.step]
        if not ahead:
            return False
        there = self._record(record.step)
        if ahead == [record.step] and there is not None and there.digests == record.digests:
            return True
        good = [step for step in self.good_steps() if step < record.step]
        raise InputError(
            f"step {record.step} is not saved: {self.folder.path} holds steps {listed(ahead)} of another course",
            "a step after all that are there, so that the newest is always the one to go on from",
            f"rollback({good[-1]}), which moves them away" if good else "another folder, or move them away",
        )

    def _begin(self, arrays: list[jax.Array], state: Any, record: StepRecord) -> None:
        self._clean_once()
        problem = agree(self._no_room(host_bytes(arrays)) if self._check_room else None)
        if problem:
            raise CheckpointError(f"step {record.step} is not saved: {problem}. {self._stands()}")
        items = ocp.args.Composite(
            **{STATE: ocp.args.StandardSave(state), RECORD: ocp.args.JsonSave(record.to_json())}
        )
        try:
            self._orbax.save(self.folder.step(record.step), args=items)
        except Exception as error:
            raise self._failed(record.step, error) from error
        self._pending = record
        if not self._asynchronous:
            self.wait()

    def _no_room(self, need_bytes: int) -> str | None:
        free = self.folder.room()
        if free is None or free >= need_bytes:
            return None
        return f"it takes up to {format_bytes(need_bytes)}, {self.folder.path} has {format_bytes(free)} left"

    def _settle(self) -> None:
        """The save in the background is on disk: older steps beyond `keep` go."""
        self._pending = None
        if self._keep is None or jax.process_index() != 0:
            return
        for step in self.good_steps()[: -self._keep]:
            self.folder.remove(step)

    def _failed(self, step: int, error: Exception) -> CheckpointError:
        self._pending = None
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):      # the first error is the one to tell
                self.folder.clean()     # what was written of it takes the room that the next save needs
        return CheckpointError(f"step {step} was not saved: {first_line(error)}. {self._stands()}")

    def _stands(self) -> str:
        good = self.good_steps()
        return f"Step {good[-1]} stands" if good else "There is no older step"

    def _record(self, step: int) -> StepRecord | None:
        try:
            return read_record(self.folder, step)
        except (DamagedError, InputError, OSError):
            return None

    def _clean_once(self) -> None:
        if not self._cleaned and jax.process_index() == 0:
            self.folder.clean()
        self._cleaned = True

    def _move_away(self, steps: list[tuple[int, str]]) -> list[str]:
        """Moves steps to quarantine; says which cannot be moved: a full disk must not stop a restore."""
        problems: list[str] = []
        if not steps or self._read_only:
            return problems
        for step, why in steps if jax.process_index() == 0 else ():
            try:
                self.folder.quarantine(step, why)
            except OSError as error:
                problems.append(f"step {step} cannot be moved away: {first_line(error)}")
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("jaxplan: steps moved away")
        return problems

    def _shared(self, steps: list[int]) -> list[int]:
        """The first process's answer, on every process: a shared file system need not show all the same at once."""
        if jax.process_count() == 1:
            return steps
        from jax.experimental import multihost_utils

        count = int(multihost_utils.broadcast_one_to_all(np.int32(len(steps))))
        own = np.asarray((steps + [0] * count)[:count], np.int32)
        return [int(step) for step in multihost_utils.broadcast_one_to_all(own)]
