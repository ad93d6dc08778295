"""Terms against the polynomials that they stand for, written out."""

import numpy as np
import pytest

from jaxplan.estimate.terms import VARIABLES, Pipeline, TermMatrix, Terms, exponents, rows, total
from jaxplan.plan.sharding import sizes_in_order

DATA, FSDP, TENSOR = (VARIABLES.index(axis) for axis in ("data", "fsdp", "tensor"))


def sizes(data, fsdp, tensor, stage=1):
    return sizes_in_order({"data": data, "fsdp": fsdp, "tensor": tensor, "stage": stage})


SIZES = rows([sizes(2, 4, 8), sizes(1, 1, 1), sizes(16, 2, 1)], [3, 1, 7], [5, 1, 2])


def test_one_term_is_its_monomial():
    cost = Terms.one(6.0, fsdp=-1, microbatches=1)
    assert cost.at(SIZES) == pytest.approx([6 / 4 * 3, 6.0, 6 / 2 * 7])


def test_sum_of_terms_is_sum_of_costs():
    parts = [Terms.one(2.0, data=-1), Terms.one(3.0, data=-1, tensor=-2), Terms.one(5.0)]
    expected = 2 / SIZES[:, DATA] + 3 / SIZES[:, DATA] / SIZES[:, TENSOR] ** 2 + 5
    assert total(parts).at(SIZES) == pytest.approx(expected)


def test_accumulating_switches_a_term_off_at_one_microbatch():
    assert Terms.one(7.0, accumulating=1).at(SIZES) == pytest.approx([7, 0, 7])


def test_rows_tell_accumulation_and_chunks():
    found = rows([sizes(2, 4, 8), sizes(1, 1, 1)], [3, 1], [1, 2])
    told = {name: found[:, VARIABLES.index(name)].tolist() for name in ("microbatches", "accumulating", "chunked")}
    assert told == {"microbatches": [3, 1], "accumulating": [1, 0], "chunked": [0, 1]}


def test_microbatches_of_a_pipeline_follow_each_other_instead_of_being_accumulated():
    pipeline = Pipeline(np.array([1.5, 9.0]), np.array([11, 9]), np.array([11, 9]))
    found = rows([sizes(1, 1, 1, stage=4), sizes(4, 1, 1)], [8, 8], [1, 1], pipeline)
    names = ("microbatches", "pipelined", "bubble", "ticks", "in_flight", "accumulating", "pipelining")
    told = [[row[VARIABLES.index(name)] for name in names] for row in found]
    assert told == [[1, 8, 1.5, 11, 11, 0, 1], [8, 1, 1, 0, 1, 1, 0]]
    with pytest.raises(ValueError, match="need a pipeline's figures"):
        rows(sizes(1, 1, 1, stage=4), 8, 1)


def test_times_multiplies_every_term():
    cost = (Terms.one(2.0, data=-1) + Terms.one(1.0)).times(tensor=-1) * 3
    assert cost.at(SIZES) == pytest.approx((2 / SIZES[:, DATA] + 1) / SIZES[:, TENSOR] * 3)


def test_matrix_prices_several_costs_as_each_alone():
    costs = [Terms.one(2.0, fsdp=-1), Terms.one(3.0, fsdp=-1, loss_chunks=-1), Terms()]
    together = TermMatrix.of(costs).evaluate(SIZES)
    chunks = SIZES[:, VARIABLES.index("loss_chunks")]
    assert together == pytest.approx(np.column_stack([2 / SIZES[:, FSDP], 3 / SIZES[:, FSDP] / chunks, np.zeros(3)]))


def test_unknown_variable_is_refused():
    with pytest.raises(ValueError, match="unknown variable 'experts'"):
        exponents(experts=-1)
