"""What limits many plans at once, against the ledger of each."""

from collections import Counter

import numpy as np

from jaxplan.search.bottlenecks import BUBBLE, bottlenecks


def merged(time_s):
    """A plan's ledger with the collectives of the same axes as one entry."""
    out = Counter()
    for name, seconds in time_s.items():
        out[" ".join(name.split()[:2]) if name.startswith("exposed") else name] += seconds
    return out


def test_the_largest_entry_of_each_ledger(ranking):
    rows = np.arange(0, len(ranking.space), 7)
    found = bottlenecks(ranking, rows)
    assert len(set(found)) >= 3
    for row, name in zip(rows.tolist(), found, strict=True):
        ledger = merged(ranking.estimate(row).time_s)
        assert ledger[name] >= max(ledger.values()) * (1 - 1e-9)
    assert BUBBLE in found and any(name.startswith("exposed") for name in found)


def test_of_no_plans_nothing(ranking):
    assert bottlenecks(ranking, np.array([], dtype=int)) == []
