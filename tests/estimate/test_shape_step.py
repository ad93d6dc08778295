"""The step of a run that is only a shape: pipelines, replicas, bounds, arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_facts import ALONE, IDEAL, LINK, MIXTURE, MODEL, facts

from jaxplan.estimate.shapes.facts import Facts, stack
from jaxplan.estimate.shapes.rates import Rates
from jaxplan.estimate.shapes.step import ledger_of, step

REAL = replace(
    IDEAL, matmul=0.8, sustained=0.9, attention=0.5, memory=0.8, link=0.8, network=0.8, state_overlap=0.7,
    tensor_overlap=0.2, expert_overlap=0.1, launch_s=4e-6, fixed_s=0.01, wave=0.5, saturation=200, jitter=0.01,
)  # fmt: skip


def whole(name, found):
    return float(np.sum(list(found.values()))) if name is None else float(found[name])


@pytest.mark.parametrize(("stage", "repeats", "microbatches"), [(4, 1, 8), (8, 1, 64), (4, 2, 8), (8, 8, 16)])
def test_the_bubble_of_a_pipeline(stage, repeats, microbatches):
    """(p - 1) / (v m) of the busy time (Narayanan et al. 2021, arXiv:2104.04473, section 2.2) and nothing else."""
    tiny = replace(MODEL, layers=64, dense_layers=64, vocab=1)
    sent = replace(ALONE, bytes_per_s=1e30)
    run = facts(tiny, stage=stage, repeats=repeats, microbatches=microbatches, send_group=sent)
    found = ledger_of(run, replace(IDEAL, latency=0))
    busy = sum(whole(n, found) for n in ("matmul", "attention", "memory-bound"))
    assert whole("bubble", found) / busy == pytest.approx((stage - 1) / (repeats * microbatches), rel=1e-3)


def test_the_last_stage_holds_the_others_up():
    """With one microbatch at a time in flight, the loss of every one of them is waited for by all stages."""
    sent = replace(ALONE, bytes_per_s=1e30)
    found = ledger_of(facts(stage=4, microbatches=32, send_group=sent), IDEAL)
    alone = ledger_of(facts(microbatches=32), IDEAL)
    without = ledger_of(facts(replace(MODEL, vocab=1e-6), microbatches=32), IDEAL)
    loss = sum(whole(name, alone) - whole(name, without) for name in ("matmul", "memory-bound"))
    assert whole("imbalance", found) == pytest.approx(loss, rel=0.02)     # a vocabulary of one still has its rows read


def test_replicas_move_gradients_and_weights_once_a_step():
    found = ledger_of(facts(data=8, data_group=LINK), IDEAL)
    moved = 1e-5 + 7 / 8 * (4 + 2) * float(MODEL.parameters) / 100e9
    assert whole("data", found) == pytest.approx(moved)
    hidden = ledger_of(facts(data=8, data_group=LINK), replace(IDEAL, state_overlap=1))
    assert whole("data", hidden) == 0 or whole("data", hidden) < moved


def test_optimizer_state_is_read_and_written():
    """Weights and two moments of 4 bytes, read and written, and gradients and weights: 32 bytes a parameter."""
    found = ledger_of(facts(), IDEAL)
    assert whole("optimizer", found) == pytest.approx(32 * float(MODEL.parameters) / 3e12)
    sharded = ledger_of(facts(data=8, data_group=LINK, choices={"zero_stage": 1}), IDEAL)
    assert whole("optimizer", sharded) == pytest.approx(whole("optimizer", found) / 8)


def test_the_slowest_of_n_hosts_sets_the_pace():
    """The expected maximum of n normal variables is near sqrt(2 ln n) deviations: drawn for 128 hosts."""
    one, many = (ledger_of(facts(devices=n), replace(IDEAL, jitter=0.01)) for n in (8, 1024))
    assert whole("stragglers", one) == 0
    drawn = np.random.default_rng(1).normal(size=(20_000, 128)).max(axis=1).mean()
    rest = whole(None, many) - whole("stragglers", many)
    assert whole("stragglers", many) / rest / 0.01 == pytest.approx(drawn, rel=0.25)


sizes = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2, 8]),
        "stage": st.sampled_from([1, 2, 8]),
        "fsdp": st.sampled_from([1, 8]),
        "data": st.sampled_from([1, 8]),
        "microbatches": st.integers(1, 64),
        "micro_batch": st.integers(1, 8),
        "seq": st.sampled_from([1024, 4096, 32768]),
    }
)


def spread(size: dict) -> Facts:
    """A run of those sizes, its groups on links where they have more than one member."""
    names = ("tensor", "fsdp", "data")
    on = {f"{name}_group": replace(LINK, size=size[name]) for name in names if size.get(name, 1) > 1}
    experts = {f"expert_{name}_group": on.get(f"{name}_group", ALONE) for name in ("fsdp", "data")}
    model = MIXTURE if size["seq"] == 4096 else MODEL
    return facts(model, send_group=replace(LINK, size=2), **experts, **size, **on)


@given(sizes)
def test_bounds_and_sums(size):
    found = step(spread(size), REAL)
    assert float(found.low) <= float(found.value) * (1 + 1e-12) <= float(found.high) * (1 + 1e-9)
    assert all(np.all(np.asarray(line) >= 0) and np.all(np.isfinite(line)) for line in found.ledger.values())
    assert float(sum(found.ledger.values())) == pytest.approx(float(found.value))


@given(sizes)
def test_more_is_never_faster(size):
    """More bandwidth or a faster chip never slows a step; more recomputation never makes one faster."""
    base = spread(size)
    value = float(step(base, REAL).value)
    for part in ("mlp", "qkv", "out", "core", "rest"):
        again = replace(base.choices, **{f"recompute_{part}": 1})
        assert float(step(replace(base, choices=again), REAL).value) >= value
    wider = replace(base.chip, hbm_bytes_per_s=6e12)
    assert float(step(replace(base, chip=wider), REAL).value) <= value * (1 + 1e-12)
    sooner = replace(base.chip, flops_per_s=2e15)
    assert float(step(replace(base, chip=sooner), REAL).value) <= value * (1 + 1e-12)
    assert float(step(base, replace(REAL, link=1.0)).value) <= value * (1 + 1e-12)
    assert float(step(base, replace(REAL, state_overlap=0.9)).value) <= value * (1 + 1e-12)


@given(st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(1, 64), st.integers(1, 64))
def test_more_microbatches_or_virtual_stages_never_raise_the_bubbles_share(stage, repeats, microbatches, more):
    def share(repeats, microbatches):
        sizes = {"stage": stage, "repeats": repeats, "microbatches": microbatches}
        found = ledger_of(facts(send_group=replace(LINK, bytes_per_s=1e30), **sizes), replace(REAL, latency=0))
        return whole("bubble", found) / whole(None, found)

    assert share(repeats, microbatches + more) < share(repeats, microbatches)
    assert share(2 * repeats, microbatches) < share(repeats, microbatches)


def test_bounds_are_full_and_no_overlap_and_the_best_clock():
    run = facts(tensor=8, fsdp=8, data=8, tensor_group=LINK, fsdp_group=LINK, data_group=LINK)
    found = step(run, REAL)
    shares = ("state_overlap", "tensor_overlap", "expert_overlap", "dcn_overlap")
    nothing = ledger_of(run, replace(REAL, **dict.fromkeys(shares, 0.0)))
    everything = ledger_of(run, replace(REAL, **dict.fromkeys(shares, 1.0), sustained=1.0))
    assert float(found.high) == pytest.approx(whole(None, nothing))
    assert float(found.low) == pytest.approx(whole(None, everything))
    assert float(found.low) < 0.9 * float(found.high)


def test_what_goes_to_the_host_is_a_floor():
    """1 MB a token, layer and microbatch there and back over 50 GB/s take longer than the layers do."""
    run = facts(choices={"offloaded": 1e6})
    found = step(run, IDEAL)
    assert float(found.value) == pytest.approx(2 * 2 * 4096 * 1e6 * 8 * 4 / 5e10)
    little = facts(choices={"offloaded": 1.0})
    assert whole("host copies", ledger_of(little, IDEAL)) == 0


def test_frozen_weights_are_not_updated():
    found = ledger_of(facts(choices={"trained": 0}), IDEAL)
    assert whole("optimizer", found) == 0
    ratio = whole("matmul", found) / whole("matmul", ledger_of(facts(), IDEAL))
    assert ratio == pytest.approx(2 / 3, rel=0.03)      # forward and gradients of inputs; GPUs add 6% to the third


def test_arrays_are_their_runs_one_by_one():
    same = {"microbatches": 8, "micro_batch": 2, "seq": 4096}
    mixed = [(t, p, f) for t in (1, 8) for p in (1, 4) for f in (1, 8)]
    runs = [spread({"tensor": t, "stage": p, "fsdp": f} | same) for t, p, f in mixed]
    together = step(stack(runs), stack([REAL] * len(runs)))
    alone = [float(step(run, REAL).value) for run in runs]
    np.testing.assert_allclose(together.value, alone, rtol=1e-12)
    assert isinstance(stack([REAL]), Rates)
