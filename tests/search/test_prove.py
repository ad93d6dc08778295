"""The proving with a prover that answers from a script: refusals, learning, stopping, nothing lost."""

from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from jaxplan.search.progress import Progress
from jaxplan.search.prove import Limits, prove


@dataclass(frozen=True)
class Answer:
    ok: bool
    total_bytes: float | None = None
    step_time_s: float | None = None
    available: bool = True

    @property
    def refuses(self):
        return self.available and not self.ok


class Scripted:
    """A prover that scales the estimates, and refuses the candidates it is told to."""

    def __init__(self, ranking, time_factor=2.0, memory_factor=1.0, refuse=lambda row: False, compiler=True):
        self.ranking, self.time_factor, self.memory_factor = ranking, time_factor, memory_factor
        self.refuse, self.compiler, self.compiled, self.partitioned = refuse, compiler, [], []

    def partition(self, row):
        self.partitioned.append(row)
        return done(Answer(True))

    def compile(self, row):
        if not self.compiler:
            return None
        self.compiled.append(row)
        memory = float(self.ranking.total_bytes[row]) * self.memory_factor
        if self.refuse(row):
            return done(Answer(False, memory * 10))
        return done(Answer(True, memory, float(self.ranking.value_s[row]) * self.time_factor))


def done(answer):
    future: Future = Future()
    future.set_result(answer)
    return future


def run(ranking, prover, top=3, limit=9):
    # plans are hashable stand-ins here: the row itself
    progress = Progress(ranking, plan_of=lambda row: row)
    seen = []
    prove(progress, prover, Limits(top, 5, limit, jobs=2), lambda tier, row, _: seen.append((tier, row)))
    return progress, seen


def test_compiles_top_and_partitions_first(ranking):
    prover = Scripted(ranking)
    progress, seen = run(ranking, prover)
    assert len(progress.compiled()) == 3
    assert sorted(tier for tier, _ in seen) == ["compile"] * 3 + ["partition"] * 5
    for row in prover.compiled:
        assert seen.index(("partition", row)) < seen.index(("compile", row))


def test_a_kind_of_plan_that_is_much_slower_than_estimated_loses_to_another(ranking):
    first = Progress(ranking, plan_of=lambda row: row)
    kind = first.roles[first.order()[0]]

    class OneKindIsSlow(Scripted):
        def compile(self, row):
            self.time_factor = 10.0 if first.roles[row] == kind else 1.0
            return super().compile(row)

    progress, _ = run(ranking, OneKindIsSlow(ranking))
    others = [row for row in first.order() if first.roles[row] != kind]
    assert progress.roles[progress.compiled()[0]] != kind
    assert progress.time_s(progress.compiled()[0]) == pytest.approx(min(ranking.value_s[others]), rel=1e-3)
    assert len({int(progress.roles[row]) for row in progress.compiled()}) >= 3


def test_learns_the_ratio_of_time(ranking):
    progress, _ = run(ranking, Scripted(ranking, time_factor=2.0))
    assert progress.time_ratio == pytest.approx(2.0)     # of every candidate, alike or not
    open_ = next(row for row in progress.order() if row not in progress.proofs)
    assert progress.time_s(open_) == pytest.approx(2.0 * ranking.value_s[open_])


def test_a_refused_candidate_is_replaced_and_stays_out(ranking):
    best = Progress(ranking, plan_of=lambda row: row).order()[0]
    progress, _ = run(ranking, Scripted(ranking, refuse=lambda row: row == best))
    assert len(progress.compiled()) == 3
    assert best in progress.refused()
    assert best not in progress.order()


def test_a_host_that_cannot_compile_the_program_refuses_nothing(ranking):
    prover = Scripted(ranking)
    prover.partition = lambda row: done(Answer(False, available=False))
    progress, _ = run(ranking, prover)
    assert progress.refused() == [] and len(progress.compiled()) == 3


def test_everything_refused_ends_at_the_limit(ranking):
    prover = Scripted(ranking, refuse=lambda row: True)
    progress, _ = run(ranking, prover, limit=4)
    assert len(prover.compiled) == 4
    assert progress.stopped == "none of 4 plans compiled"


def test_without_a_compiler_the_partition_tier_answers(ranking):
    progress, seen = run(ranking, Scripted(ranking, compiler=False))
    assert {tier for tier, _ in seen} == {"partition"}
    assert "not installed" in progress.stopped


def test_goes_on_while_a_corrected_estimate_would_come_first(ranking):
    plain = Progress(ranking, plan_of=lambda row: row)
    first = {bool(t): next(r for r in plain.order() if plain.roles[r] == t) for t in (False, True)}
    # without tensor parallelism everything is a thousand times slower than estimated, with it as estimated
    progress = Progress(ranking, plan_of=lambda row: row)
    progress.proofs = {
        first[tensor]: {"compile": Answer(True, 1.0, float(ranking.value_s[first[tensor]]) * (1 if tensor else 1000))}
        for tensor in (False, True)
    }
    progress.learn()
    open_ = [row for row in progress.order() if row not in progress.proofs]
    assert progress.roles[open_[0]] == 1       # tensor alone
    assert progress.time_s(open_[0]) == pytest.approx(ranking.value_s[open_[0]])


def test_order_holds_one_candidate_for_each_mesh_and_policy(ranking):
    progress = Progress(ranking, plan_of=lambda row: row)
    keys = [(int(ranking.space.mesh[r]), int(ranking.space.policy[r])) for r in progress.order()]
    assert len(keys) == len(set(keys))


def test_memory_objective_puts_the_smallest_first(ranking):
    progress = Progress(ranking, plan_of=lambda row: row, objective="memory")
    totals = [ranking.total_bytes[row] for row in progress.order()]
    assert totals == sorted(totals)
