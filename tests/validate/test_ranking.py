"""Order of plans: Spearman against SciPy, pairs and regret by hand, ties against us, workloads never mixed."""

from dataclasses import replace

import numpy as np
import pytest
from made_rows import ROW
from scipy import stats

from jaxplan.validate.ranking import rankings, ranks, right_pairs, spearman, summaries


def plan_class(varies):
    return "plan" if varies == ROW.varies else "machine size"


def run(name, published, predicted, **changed):
    made = {"predicted_step_time_s": predicted, "low_s": predicted, "high_s": predicted, "ledger_s": {"all": predicted}}
    return replace(ROW, id=name, published_step_time_s=published, **made, **changed)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("levels", [3, 7, 1000])    # few levels: many ties
def test_spearman_is_scipys(seed, levels):
    random = np.random.default_rng(seed)
    x, y = random.integers(0, levels, (2, 25)).astype(float)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert ranks(x) == pytest.approx(stats.rankdata(x))


def test_a_constant_has_no_correlation():
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2, 3], [3, 2, 1]) == -1.0


def test_pairs_by_hand():
    # 1.00 and 1.04 are too close to judge; the five other pairs are judged, of which (1.2, 1.5) is predicted wrongly
    published = np.array([1.00, 1.04, 1.2, 1.5])
    assert right_pairs(published, np.array([2.0, 1.0, 4.0, 3.0])) == (5, 4)
    assert right_pairs(published, np.ones(4)) == (5, 0)     # ties are not in the right order


def test_one_series_by_hand():
    rows = [run("fast", 1.0, 1.3), run("middle", 1.2, 1.1), run("slow", 2.0, 2.5)]
    (found,) = rankings(rows, plan_class)
    assert (found.runs, found.pairs, found.right) == (3, 3, 2)
    assert found.spearman == pytest.approx(0.5)     # 1 - 6 (1 + 1 + 0) / (3 (9 - 1))
    assert (found.picked, found.best) == ("middle", "fast")
    assert found.regret == pytest.approx(0.2) and found.spread == pytest.approx(1.0)


def test_plans_tied_for_the_best_give_the_slowest():
    rows = [run("fast", 1.0, 1.0), run("slow", 1.5, 1.0), run("slower", 2.0, 3.0)]
    (found,) = rankings(rows, plan_class)
    assert found.picked == "slow" and found.regret == pytest.approx(0.5)


def test_batches_and_machines_are_compared_by_what_a_token_costs():
    small = run("small", 1.0, 1.0)
    large = run("large", 1.8, 1.9, devices=16, tokens_per_step=4 * 65536.0, model_flops=8e14)
    (found,) = rankings([small, large], plan_class)
    assert found.best == found.picked == "large"        # 16 x 1.8 / 4 tokens against 8 x 1.0 / 1
    assert found.spread == pytest.approx(8.0 / (16 * 1.8 / 4) - 1)


def test_workloads_chips_and_series_are_not_mixed():
    other_sequence = run("b", 2.0, 1.0, model_flops=5e14)
    other_chip = run("c", 2.0, 1.0, chip="a100-80")
    alone = run("d", 2.0, 1.0, series=None)
    nothing = {"predicted_step_time_s": None, "low_s": None, "high_s": None, "ledger_s": {}}
    left_out = replace(ROW, id="e", not_predicted="no batch", **nothing)
    assert rankings([ROW, other_sequence, other_chip, alone, left_out, replace(ROW, id="f", oom=True)][:5]) == ()
    named = [replace(row, workload="llama3-8b, 8192") for row in (ROW, other_sequence)]
    assert len(rankings(named, plan_class)) == 1        # said to be one workload


def test_summaries_by_class():
    plans = [run("a", 1.0, 1.0), run("b", 1.2, 1.1), run("c", 2.0, 2.5)]
    wrong = [replace(row, series="other") for row in (run("d", 1.0, 3.0), run("e", 1.1, 2.0))]
    sizes = [replace(row, series="sizes", varies="chips") for row in plans]
    first, second = summaries(rankings([*sizes, *wrong, *plans], plan_class))
    assert (first.varies_class, second.varies_class) == ("plan", "machine size")
    assert (first.rankings, first.pairs, first.spearman_count) == (2, 4, 1)
    assert first.right_share == pytest.approx(3 / 4) and first.mean_spearman == pytest.approx(1.0)
    assert first.mean_regret == pytest.approx(0.05) and first.worst_regret == pytest.approx(0.1)


def test_predictions_that_are_all_alike_know_nothing_of_the_order():
    (found,) = rankings([run("a", 1.0, 1.0), run("b", 1.2, 1.0), run("c", 2.0, 1.0)], plan_class)
    assert found.spearman == 0 and found.right == 0
    (alike,) = rankings([run("a", 1.0, 1.0), run("b", 1.0, 2.0), run("c", 1.0, 3.0)], plan_class)
    assert alike.spearman is None and alike.pairs == 0 and alike.regret == 0
