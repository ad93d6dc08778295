"""One step read and proven: its record, its arrays where they were asked for, their digests. Imports JAX and orbax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxplan.checkpoint.digest import digests
from jaxplan.checkpoint.folder import COMMITTED, Folder
from jaxplan.checkpoint.position import Position
from jaxplan.checkpoint.record import StepRecord, differences, from_json
from jaxplan.checkpoint.state import Flat, flat, mesh_of
from jaxplan.checkpoint.words import first_line, listed
from jaxplan.errors import InputError
from jaxplan.plan.record import installed_versions

STATE, RECORD = "state", "jaxplan"      # the two items of a step, as orbax calls them
COMPARED_VERSIONS = ("jax", "jaxlib", "orbax-checkpoint", "optax", "flax")


class DamagedError(Exception):
    """A step that cannot be used, and why; another one may be."""


@dataclass(frozen=True)
class Restored:
    """A proven state.

    Attributes:
        record: what was known when it was saved.
        passed_over: newer steps that could not be used, and why.
        notes: what is different here: versions, mesh. Bits are equal; later steps are within rounding.
    """

    step: int
    state: Any
    record: StepRecord
    passed_over: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def position(self) -> Position | None:
        return self.record.position


def read_record(folder: Folder, step: int) -> StepRecord:
    """What was saved beside the arrays.

    Raises:
        DamagedError: the step is gone or empty, was never committed, has no digests, or its record is damaged.
        InputError: it may not be read.
    """
    path = folder.step(step)
    try:
        empty = not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:    # retention of another process was faster
        raise DamagedError("it is no folder, or gone") from error
    if empty:
        raise DamagedError("the folder is empty")
    if not (path / RECORD).exists():
        written = (path / COMMITTED).exists()
        raise DamagedError(f"it holds no digests{': it was written by orbax alone, or' if written else ','} damaged")
    try:
        data = ocp.JsonCheckpointHandler().restore(path / RECORD, args=ocp.args.JsonRestore())
        record = from_json(data)
    except PermissionError as error:
        raise _forbidden(folder, step) from error
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise DamagedError(f"its record cannot be used: {first_line(error)}") from error
    if record.step != step:
        raise DamagedError(f"its record is of step {record.step}")
    return record


def agree(problem: str | None) -> str | None:
    """The same answer on every process: a problem where any process has one."""
    if jax.process_count() == 1:
        return problem
    from jax.experimental import multihost_utils

    bad = multihost_utils.process_allgather(np.asarray(problem is not None, np.int32))
    elsewhere = [i for i, flag in enumerate(np.ravel(bad)) if flag]
    return problem or (f"process {elsewhere[0]} cannot read it" if elsewhere else None)


def proven(folder: Folder, step: int, target: Any, cast: bool, layer_order: tuple[int, ...] = ()) -> Restored:
    """The step's state in the target's structure, shardings and (with `cast`) dtypes. Called by every process.

    Args:
        layer_order: in which the target's stacked weights hold the layers (`Plan.layer_order`).

    Raises:
        DamagedError: the step cannot be used.
        InputError: it is whole, but of another model, optimizer or dtype than the target.
    """
    record, problem = None, None
    try:
        record = read_record(folder, step)
    except DamagedError as error:
        problem = str(error)
    problem = agree(problem)
    if problem or record is None:
        raise DamagedError(problem or "no record")
    asked = flat(target)
    _compare(record, asked, cast)
    _compare_order(record, layer_order)
    found = _read(folder, step, record, asked)
    _check_digests(found, record)
    state = asked.tree([_as(a, t) for a, t in zip(found.arrays, asked.arrays, strict=True)])
    return Restored(step, state, record, notes=_notes(record, asked))


def _compare(record: StepRecord, asked: Flat, cast: bool) -> None:
    different = differences(record, asked.leaves, cast=cast)
    if different:
        dtypes_only = not differences(record, asked.leaves, cast=True)
        raise InputError(
            f"step {record.step} was saved from another state: {listed(different, 3)}",
            "the model, optimizer and dtypes that it was saved with",
            "cast=True, if the change of dtype is meant" if dtypes_only else "",
        )


def _compare_order(record: StepRecord, asked: tuple[int, ...]) -> None:
    """Shapes do not tell in which order a circular pipeline stores the layers."""
    if record.layer_order != asked:
        saved, wanted = (listed(order) if order else "the model's own order" for order in (record.layer_order, asked))
        raise InputError(
            f"step {record.step} holds its layers as {saved}; asked for as {wanted}",
            "a plan with the same stages and repeats, and `layer_order=plan.layer_order` where it has repeats",
        )


def _read(folder: Folder, step: int, record: StepRecord, asked: Flat) -> Flat:
    """The arrays in their saved dtypes, each a real array where it was asked for."""
    saved = {leaf.path: leaf for leaf in record.leaves}
    dtypes = [t.dtype if saved[x.path].dtype == x.dtype else np.dtype(saved[x.path].dtype)
              for x, t in zip(asked.leaves, asked.arrays, strict=True)]  # fmt: skip
    abstract = [
        jax.ShapeDtypeStruct(t.shape, dtype, sharding=t.sharding)
        for t, dtype in zip(asked.arrays, dtypes, strict=True)
    ]
    problem, found = None, None
    try:
        # the handler itself: the checkpointer around it waits for other processes, which may have failed
        arguments = ocp.args.StandardRestore(asked.tree(abstract))
        found = flat(ocp.StandardCheckpointHandler().restore(folder.step(step) / STATE, args=arguments))
        problem = _misplaced(found, abstract)
    except MemoryError:
        raise
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):      # the devices' memory, or open files: the checkpoint may be good
            raise
        if isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error):
            raise _forbidden(folder, step) from error
        problem = f"its arrays cannot be read: {first_line(error)}"
    problem = agree(problem)
    if problem or found is None:
        raise DamagedError(problem or "no arrays")
    return found


def _forbidden(folder: Folder, step: int) -> InputError:
    return InputError(f"{folder.step(step)} may not be read: permission denied", "files that this user may read")


def _misplaced(found: Flat, abstract: list[jax.ShapeDtypeStruct]) -> str | None:
    """Whether an array is not what was asked for: a real one, of that shape and dtype, on all of those devices."""
    for leaf, array, want in zip(found.leaves, found.arrays, abstract, strict=True):
        if not isinstance(array, jax.Array) or array.is_deleted():
            return f"{leaf.path} is no array"
        if (array.shape, array.dtype) != (want.shape, want.dtype):
            return f"{leaf.path} came back as {array.dtype}{list(array.shape)}"
        if not array.sharding.is_equivalent_to(want.sharding, array.ndim):
            return f"{leaf.path} came back as {array.sharding}, asked for as {want.sharding}"
        if {s.device for s in array.addressable_shards} != want.sharding.addressable_devices:
            return f"{leaf.path} is not on all of its devices"
    return None


def _check_digests(found: Flat, record: StepRecord) -> None:
    saved = record.digests
    now = found.digested(digests(found.arrays)[0])
    wrong = [leaf.path for leaf in now if leaf.digest != saved[leaf.path]]
    if wrong:
        raise DamagedError(f"the bits of {len(wrong)} of {len(now)} arrays changed on disk: {listed(wrong)}")


def _as(array: jax.Array, target: Any) -> jax.Array:
    if array.dtype == target.dtype:
        return array
    return jax.jit(lambda x: x.astype(target.dtype), out_shardings=target.sharding)(array)


def _notes(record: StepRecord, asked: Flat) -> tuple[str, ...]:
    here, mesh = installed_versions(), mesh_of(asked.arrays)
    notes = [
        f"saved with {name} {record.versions[name]}, restored with {here.get(name)}"
        for name in COMPARED_VERSIONS
        if name in record.versions and record.versions[name] != here.get(name)
    ]
    if dict(record.mesh) != mesh:
        notes.append(f"saved from mesh {dict(record.mesh)}, restored to {mesh}")
    return tuple(notes)
