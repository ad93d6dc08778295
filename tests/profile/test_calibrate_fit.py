"""The fit recovers prices that made the timings, whatever the noise, and never rewards work."""

import jax
import numpy as np
import pytest

from jaxplan.profile.calibrate.collectives import group_sizes
from jaxplan.profile.calibrate.fit import fit
from jaxplan.profile.calibrate.kernels import QUICK, TURN, kernels
from jaxplan.profile.calibrate.overlap import BOTH, MATMUL, MOVED, hidden
from jaxplan.profile.calibrate.session import counts_up_to, rates, without_turns
from jaxplan.profile.calibrate.touch import first_touch_s

TRUE = {"operations": 2e-6, "FLOPs": 1e-11, "bytes": 5e-11}


def timings(noise, count=60, seed=0):
    """Works over four decades, and their time with errors that only add, as on a disturbed machine."""
    random = np.random.default_rng(seed)
    works = [
        {
            "operations": float(random.integers(1, 5)),
            "FLOPs": 10 ** random.uniform(5, 9),
            "bytes": 10 ** random.uniform(4, 8),
        }
        for _ in range(count)
    ]
    true = [sum(TRUE[kind] * amount for kind, amount in work.items()) for work in works]
    return works, [t * (1 + noise * random.random()) for t in true]


def test_prices_without_noise_are_exact():
    found = fit(*timings(0.0))
    assert found.prices == pytest.approx(TRUE, rel=1e-6)
    assert found.worst < 1e-6


def test_prices_survive_noise_and_a_few_disturbed_timings():
    works, taken = timings(0.04)
    for disturbed in (3, 17, 40):
        taken[disturbed] *= 8
    found = fit(works, taken)
    assert found.prices == pytest.approx(TRUE, rel=0.12)       # 2% of mean noise, and 3 of 60 timings eight times off
    assert found.median < 0.04 and found.worst > 0.8


def test_no_price_is_negative_where_timings_contradict_it():
    works = [{"a": 1.0, "b": 1.0}, {"a": 1.0}, {"a": 2.0, "b": 5.0}]
    found = fit(works, [1.0, 1.5, 2.0])
    assert all(price >= 0 for price in found.prices.values())


@pytest.mark.parametrize("kind", sorted(TRUE))
def test_more_work_never_takes_less_time(kind):
    prices = fit(*timings(0.3, seed=4)).prices
    base = {"operations": 3.0, "FLOPs": 1e7, "bytes": 1e6}
    times = [sum(prices[k] * a for k, a in {**base, kind: base[kind] * more}.items()) for more in (1, 2, 10, 1000)]
    assert times == sorted(times)


def test_timings_that_are_none_are_refused():
    with pytest.raises(ValueError, match="positive timing"):
        fit([{"a": 1.0}], [0.0])
    with pytest.raises(ValueError, match="positive timing"):
        fit([], [])


def piece(name, family, seconds, flops=0.0, moved=0.0):
    return {"name": name, "family": family, "seconds": seconds, "flops": flops, "moved": moved, "launch_s": 1e-4}


def test_rates_are_work_over_time():
    pieces = [
        piece("matmul f32 1x1x1", "matmul", 2.0, 8e9), piece("matmul f32 2x2x2", "matmul", 1.0, 6e9),
        piece("matmul f32 3x3x3", "matmul", 1.0, 5e9), piece("add 5", "memory", 0.5, 0.0, 1e9),
    ]  # fmt: skip
    found = {name: (value, unit) for name, value, unit in rates(pieces)}
    assert found["matmul peak float32"] == (6e9, "FLOP/s") and found["matmul float32"] == (5e9, "FLOP/s")
    assert found["memory"] == (2e9, "B/s") and found["launch"] == (1e-4, "s")
    assert "attention" not in found and "matmul bfloat16" not in found


def test_what_hides_is_a_part_of_the_shorter():
    def pieces(matmul, moved, both):
        return [{"name": n, "seconds": s} for n, s in ((MATMUL, matmul), (MOVED, moved), (BOTH, both))]

    assert hidden(pieces(4.0, 2.0, 4.5)) == pytest.approx(0.75)
    assert hidden(pieces(4.0, 2.0, 7.0)) == 0.0 and hidden(pieces(2.0, 4.0, 3.0)) == 1.0
    assert hidden(pieces(4.0, 2.0, 0.0)) is None and hidden([]) is None


def test_turns_of_the_loop_are_taken_off():
    pieces = [piece(TURN, "turn", 2.0), piece("a", "memory", 3.9), piece("b", "memory", 12.0)]
    assert [(p["name"], p["seconds"]) for p in without_turns(pieces)] == [("b", 10.0)]
    assert [p["seconds"] for p in without_turns(pieces[1:])] == [3.9, 12.0]


def test_memory_that_is_new_costs_something():
    assert 1e-12 < first_touch_s(1, 1) < 1e-7       # a page of 4 KiB in 4 ns to 400 us


def test_counts_and_groups_that_are_measured():
    assert counts_up_to(8, False) == [1, 2, 4, 8] and counts_up_to(6, False) == [1, 2, 4, 6]
    assert counts_up_to(8, True) == [1, 8] and counts_up_to(1, True) == [1]
    assert group_sizes(8, 8) == (2, 4, 8)
    assert group_sizes(16, 8) == (2, 4, 8, 16)          # two hosts of eight: within one, and over both
    assert group_sizes(12, 4) == (2, 4, 12)
    assert group_sizes(1, 1) == ()


def test_kernels_have_names_of_their_own_and_the_quick_ones_exist():
    names = [kernel.name for kernel in kernels(False, False)]
    assert len(set(names)) == len(names)
    assert set(names) >= QUICK
    large = kernels(True, False)
    assert max(kernel.flops for kernel in large) > 1e12     # a chip is filled
    assert all(kernel.flops > 0 for kernel in large if kernel.family in ("matmul", "attention"))


def test_an_accelerators_kernels_are_programs():
    for kernel in kernels(True, False):
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kernel.arguments]
        assert jax.tree.leaves(jax.eval_shape(kernel.function, *arguments)), kernel.name
