"""The fitting set and the checking set: drawn by a rule that looks at no error, told apart by whole series."""

import hashlib
from collections import defaultdict

import pytest
from made_runs import run

from jaxplan.validate.published import read
from jaxplan.validate.split import explains, part_of, series_of, source_of, split


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("AI-Hypercomputer/maxtext src/maxtext/configs/tpu/v5e/README.md (tables)", "AI-Hypercomputer/maxtext"),
        ("Korthikanti et al. 2022 (arXiv:2205.05198) table 5", "Korthikanti et al. 2022"),
        ("MegaScale (arXiv:2402.15627), table 2", "MegaScale"),
        ("", "unknown"),
    ],
)
def test_the_source_is_a_repository_or_a_paper(words, source):
    assert source_of(run(source=words)) == source


def test_everything_that_the_split_names_exists():
    runs = read()
    sources, series = {source_of(r) for r in runs}, {series_of(r) for r in runs}
    assert split().sources <= sources
    assert (split().series | split().fitted) - series == set()
    assert not split().series & split().fitted
    for beginning in split().not_fitted:
        assert any(r.id.startswith(beginning) for r in runs), beginning


def test_no_source_that_only_checks_has_a_fitted_series():
    of_sources = {series_of(r) for r in read() if source_of(r) in split().sources}
    assert not of_sources & split().fitted


def test_the_split_follows_its_rule():
    """As the head of the file says: by source, chip and kind, in the order of SHA-256, every third from the first on.

    A lone series is fitted to, of two the first checks. A series on several chips checks where one of them says so.
    """
    groups = defaultdict(set)
    for r in read():
        if source_of(r) not in split().sources:
            groups[source_of(r), r.chip, r.kind].add(series_of(r))
    drawn = set()
    for names in groups.values():
        ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        drawn |= set(ordered[::3]) if len(ordered) > 1 else set()
    assert len(drawn) > 40 and split().series - drawn == drawn - split().series
    assert split().fitted == set().union(*groups.values()) - drawn


def test_runs_that_are_never_fitted_to_are_still_counted():
    odd = [r for r in read() if not explains(r)]
    assert odd and {part_of(r) for r in odd} <= {"fit", "check"}
    assert explains(run(id="something-else"))


def test_a_run_that_nobody_knows_checks():
    assert part_of(run(series=None, id="new")) == "check"
    known = next(r for r in read() if part_of(r) == "fit")
    assert part_of(known.model_copy(update={"source": "MooreThreads/SimuMax docs"})) == "check"
