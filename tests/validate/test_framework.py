"""Profiles of frameworks as data: complete, explained, and read as written."""

import tomllib

import pytest
from made_runs import run

from jaxplan.machine import files
from jaxplan.validate.framework import FOLDER, profile_of, profiles, year_of
from jaxplan.validate.row import GROUPS

FILES = sorted(files.folder(FOLDER).glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_profile_says_why(path):
    """A head of comments that names a paper or a repository, and no key that no table describes."""
    text = path.read_text()
    head = [line for line in text.splitlines()[:8] if line.startswith("#")]
    words = " ".join(head)
    assert len(words) > 80 and ("arXiv:" in words or "/" in words), "what the framework does, and where that is written"
    data = tomllib.loads(text)
    assert data["id"] == path.stem
    described = (files.folder(FOLDER) / "README.md").read_text()
    for key in data["time"]:
        assert f"`{key}`" in described or f"`{key.removeprefix('compiled_')}`" in described, key


def test_every_file_is_a_profile():
    assert {profile.id for profile in profiles()} == {path.stem for path in FILES}
    assert len({profile.order for profile in profiles()}) == len(FILES)
    for profile in profiles():
        assert profile.group in GROUPS
        assert profile.compiled_kernels_per_layer <= profile.kernels_per_layer
        assert profile.compiled_loss_bytes_per_logit <= profile.loss_bytes_per_logit
        assert all(0 <= share <= 1 for share in profile.default_recompute)


def test_compiling_fuses_the_loss_and_the_launches():
    eager, compiled = (profile_of(run(), "gpu").habits(run(compile=flag)) for flag in (False, True))
    assert compiled.kernels_per_layer < eager.kernels_per_layer
    assert compiled.loss_bytes_per_logit < eager.loss_bytes_per_logit
    assert compiled.fused_attention == eager.fused_attention


@pytest.mark.parametrize(
    ("date", "year"), [("2023-12", 2023), ("2021", 2021), ("25.11", 2025), (None, None), ("unknown", None)]
)
def test_years(date, year):
    assert year_of(run(date=date)) == year


def test_only_profiles_of_the_chips_kind_are_asked():
    for kind in ("tpu", "gpu"):
        for framework in ("Megatron-Core", "MaxText (JAX)", "torchtitan (FSDP2)", "DeepSpeed ZeRO-3", "?"):
            assert kind in profile_of(run(framework=framework), kind).kinds
