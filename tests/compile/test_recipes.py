"""The recipes of published runs that are compiled: complete and sourced."""

import tomllib
from pathlib import Path

import pytest

from jaxplan.plan.remat import POLICIES

FOLDER = Path(__file__).resolve().parents[2] / "profiling" / "published"
RECIPES = tomllib.loads((FOLDER / "recipes.toml").read_text())


@pytest.mark.parametrize("recipe", RECIPES["run"], ids=lambda recipe: recipe["id"])
def test_a_recipe_is_complete(recipe):
    assert recipe["remat"] in POLICIES
    assert "@" in RECIPES["flags"][recipe["flags"]]["source"]       # a file at a commit
    if "axes" in recipe:
        assert recipe["differs"]


def test_there_are_enough_of_each_kind():
    """At least 12, 6 of them on TPUs and 4 on GPUs."""
    tpu = [any(chip in recipe["id"] for chip in ("v5e", "v5p", "v6e", "tpu7x")) for recipe in RECIPES["run"]]
    assert len(tpu) >= 12 and sum(tpu) >= 6 and len(tpu) - sum(tpu) >= 4


def test_the_runs_are_published():
    rows = {row["id"]: row for row in tomllib.loads((FOLDER / "runs.toml").read_text())["run"]}
    for recipe in RECIPES["run"]:
        row = rows[recipe["id"]]
        assert "axes" in recipe or min(row["dp"], row["fsdp"], row["tp"]) >= 1
        assert {"step_time_s", "derived_step_time_s", "tflops_per_device"} & set(row)
