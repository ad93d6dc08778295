"""Plan files, schema `jaxplan.plan/1`: written whole or not at all, read with every fault named. No JAX."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pydantic

from jaxplan.errors import InputError
from jaxplan.plan.json_text import render
from jaxplan.plan.plan import Plan
from jaxplan.plan.record import RELATIVE_TOLERANCE, LeafSpec, PlanRecord
from jaxplan.plan.remat import policies_of
from jaxplan.plan.schema import PlanFile, fault, to_entries

SCHEMA = "jaxplan.plan/1"
DERIVED = ("chips", "devices", "hosts")  # written into the machine for people to read
AGAIN = "`jaxplan search`, which writes plan files"


def to_json(record: PlanRecord) -> dict[str, Any]:
    """The record as plain data, in the order in which people read it."""
    plan = record.plan
    decisions = plan.decisions()
    mesh = [{**axis, "links": record.placement.get(axis["axis"], "")} for axis in decisions.pop("mesh")]
    machine, workload = decisions.pop("machine"), decisions.pop("workload")
    return {
        "schema": SCHEMA,
        "fingerprint": record.fingerprint,
        "mesh": mesh,
        **decisions,
        "rules": plan.rules.to_json(),
        "memory_bytes": _memory(record),
        "step_time_s": _time(record),
        "search": _search(record),
        "assumptions": list(record.assumptions),
        "versions": dict(record.versions),
        "workload_fingerprint": plan.workload.fingerprint,
        "workload": workload,
        "machine": machine,
        "evidence": {tier: dict(found) for tier, found in record.evidence.items()},
        "leaves": {
            "parameters": _leaves(record.parameters),
            "optimizer": _leaves(record.optimizer),
            "batch": _leaves(record.batch),
        },
    }


def _memory(record: PlanRecord) -> dict[str, Any] | None:
    ledger = record.memory
    if ledger is None:
        return None
    parts = [{"name": p.name, "bytes": p.amount, "source": p.source} for p in ledger.parts]
    return {"total": ledger.total_bytes, "capacity": ledger.capacity_bytes, "parts": parts}


def _time(record: PlanRecord) -> dict[str, Any] | None:
    ledger = record.time
    if ledger is None:
        return None
    parts = [{"name": p.name, "seconds": p.amount, "source": p.source} for p in ledger.parts]
    return {"value": ledger.value_s, "low": ledger.low_s, "high": ledger.high_s, "parts": parts}


def _search(record: PlanRecord) -> dict[str, Any] | None:
    if record.search is None:
        return None
    return {**asdict(record.search), "runner_ups": [asdict(r) for r in record.search.runner_ups]}


def _leaves(leaves: Iterable[LeafSpec]) -> list[dict[str, Any]]:
    return [
        {
            "path": leaf.path,
            "shape": list(leaf.shape),
            "dtype": leaf.dtype,
            "itemsize": leaf.itemsize,
            "dims": to_entries(leaf.dims),
            "spec": to_entries(leaf.spec),
        }
        for leaf in leaves
    ]


def write(record: PlanRecord, path: str | os.PathLike[str]) -> Path:
    """Writes the record to `path`, whole or not at all, and returns the path.

    Raises:
        InputError: the folder cannot be written.
        ValueError: a figure is not finite, or evidence is not plain data.
    """
    path = Path(path)
    try:
        text = render(to_json(record)) + "\n"
    except TypeError as error:
        raise ValueError(f"evidence must be plain data: {error}") from error
    save(path, text)
    return path


def save(path: Path, text: str) -> None:
    """Writes a file whole, in a folder that is made if need be.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", "a folder that can be written") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file by `content`; a reader, or a crash at any moment, sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        os.fchmod(handle, _mode(path))
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced; for a new one those that the umask leaves."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def read(path: str | os.PathLike[str]) -> PlanRecord:
    """Reads a plan file.

    Raises:
        InputError: no such file; not JSON (line and column); another schema version; a key that is missing,
            unknown or of the wrong type; a mesh that does not multiply up to the machine; an axis, a role, a
            policy that is not known; a spec that uses an axis twice or does not divide its dim; ledgers that
            do not add up.
    """
    data = _load(Path(path))
    _check_schema(path, data)
    try:
        file = PlanFile.model_validate_json(json.dumps(_without_counts(data)))
        _check_machine(data["machine"], file)
        record = _record(file)
        _check_rules(file, record.plan)
        _check_totals(file, record)
    except pydantic.ValidationError as error:
        given, expected = fault(error)
        raise InputError(f"{path}: {given}", expected) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", suggestion=AGAIN) from error
    except ArithmeticError as error:
        raise InputError(f"{path}: its numbers make no plan ({error})", "positive sizes", AGAIN) from error
    return record


def _without_counts(data: Mapping[str, Any]) -> dict[str, Any]:
    """The file without the machine's derived counts, which `Machine` does not take."""
    machine = data.get("machine")
    if not isinstance(machine, Mapping):
        return dict(data)
    return {**data, "machine": {k: v for k, v in machine.items() if k not in DERIVED}}


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (byte {error.start})", "a plan file in UTF-8", AGAIN) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", "a plan file", AGAIN) from error
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InputError(
            f"{path} is not valid JSON: {error.msg} at {where}", "a whole plan file", AGAIN
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", "a whole plan file", AGAIN) from error
    if not isinstance(data, dict):
        kind = "null" if data is None else type(data).__name__
        raise InputError(
            f"{path} holds a JSON {kind}", f"an object with schema {SCHEMA!r}", AGAIN
        )
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return found


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _check_schema(path: object, data: Mapping[str, Any]) -> None:
    schema = data.get("schema")
    if schema == SCHEMA:
        return
    if schema is None:
        raise InputError(f"{path}: key schema is missing", f"{SCHEMA!r}: this is no plan file", AGAIN)
    raise InputError(
        f"{path}: schema is {schema!r}",
        f"{SCHEMA!r}, the one that this version of jaxplan reads",
        "the version of jaxplan that wrote it, or `jaxplan search` again",
    )


def _record(file: PlanFile) -> PlanRecord:
    plan = Plan(
        machine=file.machine,
        workload=file.workload,
        axes=tuple(axis.axis_of() for axis in file.mesh),
        remat=file.remat,
        microbatches=file.microbatches,
        attention=file.attention,
        zero1=file.zero1,
        sequence_sharding=file.sequence_sharding,
        loss_chunks=file.loss_chunks,
        zero2=file.zero2,
        context_attention=file.context_attention,
        schedule=file.schedule,
        repeats=file.repeats,
        offload_optimizer=file.offload_optimizer,
        compiler_flags=file.compiler_flags,
    )
    known = policies_of(file.workload, groups=True, host=True)
    if file.remat not in known:
        raise ValueError(f"remat must be one of {', '.join(known)}, got {file.remat!r}")
    return PlanRecord(
        plan=plan,
        parameters=tuple(leaf.leaf() for leaf in file.leaves.parameters),
        optimizer=tuple(leaf.leaf() for leaf in file.leaves.optimizer),
        batch=tuple(leaf.leaf() for leaf in file.leaves.batch),
        placement={axis.axis: axis.links for axis in file.mesh if axis.links},
        memory=file.memory_bytes.ledger() if file.memory_bytes else None,
        time=file.step_time_s.ledger() if file.step_time_s else None,
        evidence=file.evidence,
        search=file.search.record() if file.search else None,
        versions=file.versions,
        assumptions=tuple(file.assumptions),
        fingerprint=file.fingerprint,
    )


def _check_machine(data: Mapping[str, Any], file: PlanFile) -> None:
    """The counts that the file shows are derived: they must agree with the shape that they come from."""
    for name in DERIVED:
        given, derived = data.get(name), getattr(file.machine, name)
        if given is not None and given != derived:
            raise ValueError(f"machine.{name} is {given}, the machine's shape makes {derived}")


def _check_rules(file: PlanFile, plan: Plan) -> None:
    for name, axes in (*file.rules.compute.items(), *file.rules.optimizer.items(), *file.rules.gradients.items()):
        for axis in axes:
            if axis not in plan.sizes:
                raise ValueError(
                    f"the rule for {name} names axis {axis!r}, the mesh has {', '.join(plan.sizes)}"
                )
    # which dim owns a contested axis is not the file's to decide, and later versions name more dims
    if {**file.rules.model_dump(), "priority": ()} != {**plan.rules.to_json(), "priority": ()}:
        raise ValueError(
            f"rules are not those of sequence_sharding={plan.sequence_sharding} and zero1={plan.zero1}: "
            f"change these, expected {plan.rules.to_json()['compute']}"
        )


def _check_totals(file: PlanFile, record: PlanRecord) -> None:
    for key, given, ledger in (
        ("memory_bytes.total", file.memory_bytes and file.memory_bytes.total, record.memory),
        ("step_time_s.value", file.step_time_s and file.step_time_s.value, record.time),
    ):
        if ledger is None or given is None:
            continue
        total = math.fsum(part.amount for part in ledger.parts)
        if not math.isclose(given, total, rel_tol=RELATIVE_TOLERANCE):
            raise ValueError(f"{key} is {given}, its parts add up to {total}")
