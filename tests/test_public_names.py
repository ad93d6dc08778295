"""The public names, pinned: adding one is a decision, removing one breaks users."""

import tomllib
from pathlib import Path

import jaxplan

PUBLIC = """
InputError JaxplanError LoadedPlan MissingError Plan PlanRecord PlanWarning Program VerdictError __version__ load
"""


def test_public_names() -> None:
    assert (
        jaxplan.__all__
        == PUBLIC.split()
        == [name for name in dir(jaxplan) if getattr(jaxplan, name) is not None]
    )


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert jaxplan.__version__ == project["version"]
