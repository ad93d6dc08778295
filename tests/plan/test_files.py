"""Plan files: exact round trip, whole writes, and one clear message for every fault."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxplan.errors import InputError
from jaxplan.machine.topology import Machine
from jaxplan.plan import files
from jaxplan.plan.json_text import render
from jaxplan.plan.record import PlanRecord


@pytest.fixture
def path(record: PlanRecord, tmp_path: Path) -> Path:
    return files.write(record, tmp_path / "plan.json")


def set_at(*keys: Any) -> Callable[[dict, Any], None]:
    def change(data: dict, value: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def test_round_trip_is_exact(record: PlanRecord, path: Path, tmp_path: Path) -> None:
    found = files.read(path)
    assert found == record
    assert found.plan.fingerprint == record.plan.fingerprint
    assert not found.stale
    assert files.write(found, tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_machine_survives_as_through_its_own_reader(record: PlanRecord, path: Path) -> None:
    data = json.loads(path.read_text())
    assert files.read(path).plan.machine == Machine.from_json(data["machine"])


def test_every_catalogue_machine_survives(record: PlanRecord, tmp_path: Path) -> None:
    catalogue = pytest.importorskip("jaxplan.machine.catalogue")
    from sample_plans import make_plan

    for mesh, chip in (("2x4", "v5e"), ("1x8", "h100"), ("2x2x1", "tpu7x")):
        machine = catalogue.machine(mesh, chip)
        plan = make_plan(2, 2, machine.devices // 4, machine=machine)
        record = PlanRecord(plan)
        assert files.read(files.write(record, tmp_path / "plan.json")) == record, chip


def test_the_file_is_readable_and_diffable(path: Path) -> None:
    lines = path.read_text().splitlines()
    up = [line for line in lines if '"layers.up"' in line]
    assert up == [
        '   {"path": "layers.up", "shape": [4, 64, 128], "dtype": "float32", "itemsize": 4, '
        '"dims": ["layers", "embed", "mlp"], "spec": [null, "fsdp", "tensor"]},'
    ]
    assert lines[1] == ' "schema": "jaxplan.plan/1",'
    assert "Ångström" in path.read_text()


@pytest.mark.parametrize(
    "value", [{}, [], {"a": []}, [[], [1, [2]]], {"a": {"b": [{"c": None}]}}, "ü\n", 1e-300, True]
)
def test_rendered_text_is_the_value(value: Any) -> None:
    assert json.loads(render(value)) == value


def test_a_failed_write_leaves_the_old_file_alone(
    record: PlanRecord, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*plan.json: No space left on device"):
        files.write(record, path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_a_new_file_obeys_the_umask(record: PlanRecord, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        assert files.write(record, tmp_path / "deep" / "plan.json").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_what_is_no_plain_data_is_not_written(record: PlanRecord, tmp_path: Path) -> None:
    import dataclasses

    for value in (object(), float("inf")):
        bad = dataclasses.replace(record, evidence={"compiled": {"x": value}})
        with pytest.raises(ValueError):
            files.write(bad, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON: Expecting value at line 1 column 1"),
        (
            '{"schema": "jaxplan.plan/1",\n "mesh": [}',
            "is not valid JSON: Expecting value at line 2 column 11",
        ),
        ("[]", "holds a JSON list. Expected an object with schema 'jaxplan.plan/1'"),
        ("{}", "key schema is missing. Expected 'jaxplan.plan/1'"),
        ('{"schema": "jaxplan.plan/2"}', "schema is 'jaxplan.plan/2'. Expected 'jaxplan.plan/1'"),
        ('{"schema": "jaxplan.plan/1", "schema": 1}', "key 'schema' stands twice"),
        ('{"schema": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_text_that_is_no_plan(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        files.read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"{\xff")
    with pytest.raises(InputError, match=r"is not text \(byte 1\)"):
        files.read(tmp_path / "plan.json")
    with pytest.raises(InputError, match="No such file or directory"):
        files.read(tmp_path / "none.json")
    with pytest.raises(InputError, match="Is a directory"):
        files.read(tmp_path)


CASES = [
    (("mesh", 0, "size"), 4, "mesh axes multiply up to 16 devices, the machine v5e 2x4 has 8"),
    (("mesh", 0, "size"), "2", "key mesh.0.size is '2'. Expected a valid integer"),
    (("mesh", 0, "role"), "pipeline", "axis data: role must be one of data, fsdp"),
    (("mesh", 0, "axis"), "fsdp", "mesh axes must have different names"),
    (("mesh", 0, "color"), 1, "key mesh.0.color is not known. Expected one of axis, size, role, links"),
    (("remat",), "some", "remat must be one of none, dots"),
    (("microbatches",), 1.5, "key microbatches is 1.5. Expected a valid integer"),
    (("microbatches",), 3, "batch 16 is not divisible by data x fsdp x microbatches = 12"),
    (("microbatches",), 0, "key microbatches is 0. Expected greater than or equal to 1"),
    (("attention",), "flash", "key attention is 'flash'. Expected 'splash', 'cudnn', 'blockwise' or"),
    (("zero1",), "yes", "key zero1 is 'yes'. Expected a valid boolean"),
    (("zero1",), False, "rules are not those of sequence_sharding=True and zero1=False"),
    (
        ("rules", "compute", "mlp"),
        ["model"],
        "the rule for mlp names axis 'model', the mesh has data, fsdp, tensor",
    ),
    (("leaves", "parameters", 0, "spec"), ["fsdp", "fsdp"], "spec P('fsdp', 'fsdp') has axis fsdp twice"),
    (
        ("leaves", "parameters", 0, "spec"),
        ["model", None],
        "spec names axis model, the mesh has data, fsdp, tensor",
    ),
    (("leaves", "parameters", 0, "shape"), [50257, 64], "dim 0 of size 50257 is not divisible by tensor = 2"),
    (("leaves", "parameters", 1, "spec"), ["fsdp", "data"], "leaf final_norm: 1 dims"),
    (
        ("machine", "chip", "hbm_bytes"),
        "16 GiB",
        "key machine.chip.hbm_bytes is '16 GiB'. Expected a valid integer",
    ),
    (("machine", "chip", "hbm_bytes"), 0, "hbm_bytes must be positive, got 0"),
    (("machine", "devices"), 16, "machine.devices is 16, the machine's shape makes 8"),
    (("machine",), 7, "key machine is 7. Expected"),
    (
        ("workload", "model", "norm"),
        "batchnorm",
        "key workload.model.norm is 'batchnorm'. Expected 'rmsnorm' or",
    ),
    (("workload", "batch"), 0, "batch and seq must be positive, got 0 and 32"),
    (("memory_bytes", "total"), 1.0, "memory_bytes.total is 1.0, its parts add up to 1234.3"),
    (("memory_bytes", "parts", 0, "source"), "guessed", "key memory_bytes.parts.0.source is 'guessed'"),
    (("step_time_s", "low"), 5.0, "must lie between 5.0 and 1.1"),
    (("search", "feasible"), 41, "feasible must be in 0..40, got 41"),
    (
        ("evidence", "dreamt"),
        {},
        "evidence must be of estimated, partitioned, compiled, measured, got 'dreamt'",
    ),
    (("microbatchs",), 1, "key microbatchs is not known. Expected one of schema, fingerprint"),
]


@pytest.mark.parametrize(
    ("keys", "value", "message"), CASES, ids=[f"{'.'.join(map(str, k))}={v}" for k, v, _ in CASES]
)
def test_wrong_values_are_named(path: Path, keys: tuple, value: Any, message: str) -> None:
    data = json.loads(path.read_text())
    set_at(*keys)(data, value)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        files.read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def every_key(value: Any, prefix: tuple = ()) -> list[tuple]:
    found = []
    for key, member in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        if isinstance(value, dict):
            found.append((*prefix, key))
        found += every_key(member, (*prefix, key))
    return found


def test_no_wrong_value_anywhere_is_a_traceback(path: Path) -> None:
    whole = json.loads(path.read_text())
    refused = 0
    for keys in every_key(whole):
        for value in (0, -1, 1e300, "x", None, [], {}, True):
            data = copy.deepcopy(whole)
            set_at(*keys)(data, value)
            path.write_text(json.dumps(data))
            try:
                files.read(path)
            except InputError as error:
                assert str(error).startswith(f"{path}: "), keys
                refused += 1
    assert refused > 1000


OPEN = ("evidence", "versions", "compiler_flags", "rejected")  # whose keys are the writer's own


def test_any_missing_key_is_named(path: Path) -> None:
    whole = json.loads(path.read_text())
    silent = []
    for keys in every_key(whole):
        data = copy.deepcopy(whole)
        parent = data
        for key in keys[:-1]:
            parent = parent[key]
        del parent[keys[-1]]
        path.write_text(json.dumps(data))
        try:
            files.read(path)
            silent.append(keys)
        except InputError as error:
            assert str(keys[-1]) in str(error), keys
    must = [k for k in silent if k[0] not in ("machine", "workload", *OPEN) and not set(k) & set(OPEN)]
    # fields of the machine and the workload that have a default may be left out, and a note or an axis' links
    assert {k[-1] for k in must} <= {"links", "note"}


def test_a_missing_key_says_what_was_expected(path: Path) -> None:
    data = json.loads(path.read_text())
    del data["leaves"]["batch"][0]["shape"]
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"key leaves.batch.0.shape is missing. Expected list\[int\]"):
        files.read(path)


def test_an_edited_decision_makes_the_evidence_stale(path: Path) -> None:
    data = json.loads(path.read_text())
    data["microbatches"] = 2
    path.write_text(json.dumps(data))
    assert files.read(path).stale
