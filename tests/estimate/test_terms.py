"""Terms against the polynomials that they stand for, written out."""

import numpy as np
import pytest

from jaxplan.estimate.terms import VARIABLES, TermMatrix, Terms, exponents, rows, total

SIZES = rows([[2, 4, 8], [1, 1, 1], [16, 2, 1]], [3, 1, 7], [5, 1, 2])


def test_one_term_is_its_monomial():
    cost = Terms.one(6.0, fsdp=-1, microbatches=1)
    assert cost.at(SIZES) == pytest.approx([6 / 4 * 3, 6.0, 6 / 2 * 7])


def test_sum_of_terms_is_sum_of_costs():
    parts = [Terms.one(2.0, data=-1), Terms.one(3.0, data=-1, tensor=-2), Terms.one(5.0)]
    expected = 2 / SIZES[:, 0] + 3 / SIZES[:, 0] / SIZES[:, 2] ** 2 + 5
    assert total(parts).at(SIZES) == pytest.approx(expected)


def test_accumulating_switches_a_term_off_at_one_microbatch():
    assert Terms.one(7.0, accumulating=1).at(SIZES) == pytest.approx([7, 0, 7])


def test_rows_tell_accumulation_and_chunks():
    assert rows([[2, 4, 8], [1, 1, 1]], [3, 1], [1, 2]).tolist() == [[2, 4, 8, 3, 1, 1, 0], [1, 1, 1, 1, 2, 0, 1]]


def test_times_multiplies_every_term():
    cost = (Terms.one(2.0, data=-1) + Terms.one(1.0)).times(tensor=-1) * 3
    assert cost.at(SIZES) == pytest.approx((2 / SIZES[:, 0] + 1) / SIZES[:, 2] * 3)


def test_matrix_prices_several_costs_as_each_alone():
    costs = [Terms.one(2.0, fsdp=-1), Terms.one(3.0, fsdp=-1, loss_chunks=-1), Terms()]
    together = TermMatrix.of(costs).evaluate(SIZES)
    assert together == pytest.approx(np.column_stack([2 / SIZES[:, 1], 3 / SIZES[:, 1] / SIZES[:, 4], np.zeros(3)]))


def test_unknown_variable_is_refused():
    with pytest.raises(ValueError, match=r"unknown variables \['expert'\]"):
        exponents(expert=-1)


def test_variables_are_seven():
    assert VARIABLES == ("data", "fsdp", "tensor", "microbatches", "loss_chunks", "accumulating", "chunked")
