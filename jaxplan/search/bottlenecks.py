"""What limits each of many plans: the largest entry of its estimated time. No JAX here."""

from __future__ import annotations

import numpy as np

from jaxplan.estimate.exchange import HOST_COPY
from jaxplan.estimate.step import CHUNK, Estimates, prefetchable
from jaxplan.estimate.terms import VARIABLES
from jaxplan.plan.sharding import AXES
from jaxplan.search.rank import Ranking

BUBBLE = "pipeline bubble"


def bottlenecks(ranking: Ranking, rows: np.ndarray) -> list[str]:
    """The largest entry of each plan's time, as `Estimate.time_s` has them but for the kinds of collectives.

    Args:
        rows: int [plans], candidates of the ranking's space.
    """
    found = np.empty(len(rows), dtype=object)
    for i, estimator in enumerate(ranking.estimators):
        mine = np.flatnonzero(ranking.priced_by[rows] == i)
        for start in range(0, len(mine), CHUNK):
            part = mine[start : start + CHUNK]
            which = rows[part]
            variables, mesh = ranking.space.variables(which), ranking.space.mesh[which]
            estimates = estimator.evaluate(variables, mesh, ranking.network)
            bubble = variables[:, VARIABLES.index("bubble")]
            found[part] = _largest(estimates, ranking.space.sizes[mesh], bubble)
    return found.tolist()


def _largest(estimates: Estimates, sizes: np.ndarray, bubble: np.ndarray) -> np.ndarray:
    """The name of each row's largest entry."""
    work, work_names = _work(estimates, bubble)
    moved, moved_names = _moved(estimates, sizes)
    names = np.array([*work_names, *moved_names], dtype=object)
    return names[np.concatenate([work, moved], axis=1).argmax(axis=1)]


def _work(estimates: Estimates, bubble: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """[plans, kinds] seconds of what computes, and of a pipeline's bubble."""
    kinds = ["recompute" if entry.recomputed else entry.kind for entry in estimates.works]
    names = sorted(set(kinds))
    inside = np.array([entry.in_layers for entry in estimates.works])
    idle = estimates.compute_s * inside * (1 - 1 / bubble)[:, None]
    spent = np.zeros((len(bubble), len(names) + 1))
    for i, kind in enumerate(kinds):
        spent[:, names.index(kind)] += (estimates.compute_s - idle)[:, i]
    spent[:, -1] = idle.sum(axis=1)
    return spent, [*names, BUBBLE]


def _moved(estimates: Estimates, sizes: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """[plans, sets of axes] seconds that are waited for; a set holds the axes that have more than one device."""
    bits = 1 << np.arange(len(AXES))
    large = (sizes > 1) @ bits
    hideable = prefetchable(estimates.collectives)
    hidden_s = estimates.collective_s @ hideable
    waited = estimates.waited_s(hidden_s, estimates.busy_s)
    share = np.divide(waited, hidden_s, out=np.ones_like(waited), where=hidden_s > 0)
    spent = np.zeros((len(sizes), 1 << len(AXES)))
    rows = np.arange(len(sizes))
    for i, entry in enumerate(estimates.collectives):
        axes = sum(int(bits[AXES.index(axis)]) for axis in entry.axes)
        spent[rows, axes & large] += estimates.collective_s[:, i] * (share if hideable[i] else 1.0)
    return spent, [_words(code) for code in range(1 << len(AXES))]


def _words(code: int) -> str:
    """What moves over no axis goes to the host's memory and comes back."""
    axes = [axis for i, axis in enumerate(AXES) if code >> i & 1]
    return f"exposed {'+'.join(axes) or HOST_COPY}"
