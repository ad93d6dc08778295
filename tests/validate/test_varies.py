"""What series vary: the file names known classes only, and every text of the bundled runs has one."""

import tomllib

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.validate.varies import CLASSES, class_of, classes


@pytest.mark.parametrize(
    ("varies", "known"),
    [
        ("TP / PP / DP / micro batch / heads / GBS", "plan"),
        ("activation checkpointing", "plan"),
        ("number of DCN slices", "machine size"),
        ("model size", "workload"),
        ("bf16 vs int8", "precision"),
        ("framework", "software"),
        ("the weather", "not classified"),
        (None, "not classified"),
    ],
)
def test_classes(varies, known):
    assert class_of(varies) == known
    assert set(classes().values()) <= set(CLASSES)


def test_every_series_of_the_bundled_runs_is_classified():
    path = files.folder("profiling/published") / "runs.toml"
    if not path.exists():
        pytest.skip("the runs are not here yet")
    runs = tomllib.loads(path.read_text())["run"]
    assert {run["varies"] for run in runs if "varies" in run} == set(classes())


def test_a_class_that_is_none_is_refused(tmp_path, monkeypatch):
    (tmp_path / "varies.toml").write_text('[varies]\n"TP4 vs PP4" = "plans"\n')
    monkeypatch.setattr(files, "folder", lambda kind: tmp_path)
    with pytest.raises(InputError, match="class 'plans' is not known"):
        classes.__wrapped__()
