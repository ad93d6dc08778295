"""Kernels of a mixture of experts: who is chosen, who gets a slot, and that the ways there and back are transposes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxplan.errors import InputError
from jaxplan.workload.kernels.dispatch import Exchange
from jaxplan.workload.kernels.routing import chosen_by
from jaxplan.workload.shape import ExpertShape


def test_chosen_experts_are_the_best_of_the_best_groups():
    shape = ExpertShape(16, 3, 8, choice_groups=4, chosen_groups=2)
    scores = np.asarray(jax.random.normal(jax.random.key(0), (50, 16)))
    for row, chosen in zip(scores, np.asarray(chosen_by(jnp.asarray(scores), shape)), strict=True):
        merit = [sum(sorted(row[4 * g : 4 * g + 4])[-2:]) for g in range(4)]
        among = [e for e in range(16) if e // 4 in np.argsort(merit)[-2:]]
        assert list(chosen) == sorted(among, key=lambda e: -row[e])[:3]


@pytest.mark.parametrize("groups", [1, 2])
def test_first_choices_are_served_first(groups):
    """Queues filled by hand, one an expert and group of tokens: by rank, then by position."""
    shape = ExpertShape(4, 2, 8)
    exchange = Exchange(shape, groups, capacity_factor=1.0)
    scores = jax.random.normal(jax.random.key(3), (3, 12, 4))
    routes = exchange.route(scores)
    tokens = 12 // groups
    slots = tokens * 2 // 4
    assert exchange.capacity(tokens) == slots
    expected = np.full((1, 4, 3, groups, slots), -1)
    answers = np.full((3, 12, 2), -1)
    for row, group in np.ndindex(3, groups):
        used = [0] * 4
        for rank, token in np.ndindex(2, tokens):
            place = group * tokens + token
            expert = int(routes.experts[row, place, rank])
            if used[expert] < slots:
                at = (0, expert, row, group, used[expert])
                expected[at] = (row * 12 + place) * 2 + rank
                answers[row, place, rank] = np.ravel_multi_index(at, expected.shape)
            used[expert] += 1
    assert (np.asarray(routes.sources) == expected).all() and (np.asarray(routes.slots) == answers).all()
    assert (answers < 0).any()


def test_dispatch_and_combine_are_transposes():
    """<dispatch(x), y> = <x, dispatch^T(y)>, and combine with gates of one is that transpose."""
    exchange = Exchange(ExpertShape(4, 2, 8), 1, capacity_factor=1.0)
    routes = exchange.route(jax.random.normal(jax.random.key(3), (2, 8, 4)))
    x, y = jax.random.normal(jax.random.key(0), (2, 8, 5)), jax.random.normal(jax.random.key(1), (4, 2, 1, 4, 5))
    sent, pull = jax.vjp(lambda x: exchange.dispatch(x, routes), x)
    back = exchange.combine(y, jnp.ones((2, 8, 2)), routes)
    np.testing.assert_allclose(pull(y)[0], back, rtol=1e-6)
    assert jnp.vdot(sent, y) == pytest.approx(float(jnp.vdot(x, back)), rel=1e-5)


def test_groups_must_be_whole():
    with pytest.raises(InputError, match="16 tokens of a row in 3 groups"):
        jax.eval_shape(Exchange(ExpertShape(8, 2, 40), 3).route, jnp.zeros((2, 16, 8)))
