"""What `file.py:name` means, read from text alone."""

from pathlib import Path

import pytest

from jaxplan.errors import InputError
from jaxplan.workload.shape import Workload
from jaxplan.workload.user import Reference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .deep import value\n")
    (tmp_path / "package" / "deep.py").write_text("value = 1\n")
    (tmp_path / "lonely.py").write_text("value = 2\n")
    text = "from package import value\nimport os\ndef program(batch, seq=64): pass\ndef other(batch): pass\n"
    (tmp_path / "model.py").write_text(text)
    return tmp_path


def test_a_reference_is_absolute_and_named_shortly(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    found = Reference.parse("model.py:program")
    assert str(found) == f"{folder.resolve()}/model.py:program" == str(Reference.parse(str(found)))
    assert Workload(None, 8, 8, reference=str(found)).name == "model.py:program"


def test_an_edit_of_anything_that_it_imports_from_beside_it_changes_the_hash(folder: Path) -> None:
    def digest() -> str:
        return Reference.parse(f"{folder}/model.py:program").digest()

    first = digest()
    (folder / "lonely.py").write_text("value = 3\n")
    assert digest() == first
    seen = {first}
    for name in ("model.py", "package/__init__.py", "package/deep.py"):
        (folder / name).write_text((folder / name).read_text() + "# edited\n")
        assert digest() not in seen
        seen.add(digest())


def test_defaults_are_the_functions_own(folder: Path) -> None:
    assert Reference.parse(f"{folder}/model.py:program").default_seq(2048) == 64
    assert Reference.parse(f"{folder}/model.py:other").default_seq(2048) == 1
    (folder / "model.py").write_text("def program(batch, seq): pass\n")
    assert Reference.parse(f"{folder}/model.py:program").default_seq(2048) == 2048


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model.py", "names no function.*Try --workload model.py:program or --workload model.py:other"),
        ("model.py:progam", "has no progam.*Try --workload model.py:program"),
        ("modle.py:program", "there is no file .*modle.py.*Try --workload .*model.py:NAME"),
        ("nowhere/model.py:program", "there is no file"),
        ("model.py:a.b", "names no function"),
        (".:program", "there is no file"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(folder: Path, monkeypatch, text: str, told: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=told):
        Reference.parse(text)


def test_names_that_only_running_could_tell_are_let_pass(folder: Path) -> None:
    (folder / "model.py").write_text("from package import *\n")
    assert Reference.parse(f"{folder}/model.py:program").name == "program"
    (folder / "model.py").write_text("not python (")
    assert Reference.parse(f"{folder}/model.py:program").functions() == []
