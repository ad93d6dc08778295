"""What devices send each other, against sums written out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_facts import ALONE, IDEAL, LINK, MIXTURE, MODEL, facts

from jaxplan.estimate.shapes import exchange
from jaxplan.estimate.shapes.experts import chosen

TOKENS = 2 * 4096
FREE = replace(LINK, latency_s=0.0, all_reduce_latency_s=0.0)
QUIET = replace(IDEAL, latency=0)


@given(st.floats(1, 1e12), st.integers(2, 4096), st.booleans())
def test_an_all_reduce_lies_between_its_parts(nbytes, size, protocols):
    """Thakur et al. 2005: a reduce-scatter and an all-gather make one; it never moves less than either of them."""
    link = replace(LINK, size=size, two_protocols=float(protocols))
    gathered, reduced = exchange.gather_s(link, IDEAL, nbytes), exchange.all_reduce_s(link, IDEAL, nbytes)
    assert gathered <= reduced * (1 + 1e-12)
    assert reduced <= 2 * gathered * (1 + 1e-12)


@given(st.floats(1, 1e12), st.integers(2, 512))
def test_never_faster_with_more_bytes_or_slower_links(nbytes, size):
    link = replace(LINK, size=size, two_protocols=1.0)
    value = exchange.gather_s(link, IDEAL, nbytes)
    assert exchange.gather_s(link, IDEAL, 1.5 * nbytes) > value
    assert exchange.gather_s(replace(link, size=size + 1), IDEAL, nbytes) > value
    assert exchange.gather_s(link, replace(IDEAL, link=0.9), nbytes) > value
    # a device receives all but its own part over links of that rate: no schedule is faster
    assert value >= (size - 1) / size * nbytes / link.bytes_per_s


def test_network_and_link_have_their_own_rate():
    slow = replace(IDEAL, network=0.5)
    inside, across = replace(FREE, network=0.0), replace(FREE, network=1.0)
    assert exchange.gather_s(inside, slow, 1e9) == pytest.approx(7 / 8 * 1e9 / 100e9)
    assert exchange.gather_s(across, slow, 1e9) == pytest.approx(7 / 8 * 1e9 / 50e9)


def test_context_ranks_gather_keys_and_values():
    """2 sequences of 4096 tokens, 8 heads of 128 + 128 in two bytes; tensor ranks have their heads only."""
    keys = 2 * 4096 * 8 * (128 + 128) * 2
    run = facts(context=8, context_group=FREE)
    assert exchange.context_s(run, QUIET) == pytest.approx(7 / 8 * keys / 100e9)
    of_ranks = facts(context=8, context_group=FREE, tensor=4)
    assert exchange.context_s(of_ranks, QUIET) == pytest.approx(7 / 8 * keys / 4 / 100e9)
    # of 8 heads 16 ranks hold one each: the same keys twice
    assert exchange.context_s(facts(context=8, context_group=FREE, tensor=16), QUIET) == pytest.approx(
        7 / 8 * keys / 8 / 100e9
    )


def test_all_to_alls_leave_out_what_stays():
    """Two of top-k copies of every token; of 8 ranks one keeps its own."""
    run = facts(MIXTURE, expert=8, expert_group=FREE, expert_network=FREE)
    copies = TOKENS * 8 * 4096 * 2
    assert exchange.experts_exchange_s(run, QUIET) == pytest.approx(2 * 7 / 8 * copies / 100e9)
    dropping = facts(MIXTURE, choices={"capacity": 1.25}, expert=8, expert_group=FREE, expert_network=FREE)
    assert exchange.experts_exchange_s(dropping, QUIET) == pytest.approx(1.25 * 2 * 7 / 8 * copies / 100e9)
    assert chosen(dropping) == 1.25 * chosen(run) == 1.25 * 8 * TOKENS
    assert exchange.experts_exchange_s(facts(MIXTURE, expert_group=FREE, expert_network=FREE), QUIET) == 0


@given(st.sampled_from([2, 4, 8, 16]), st.integers(1, 16))
def test_a_token_never_crosses_more_often_than_it_has_choices_or_nodes(nodes, chosen_experts):
    model = replace(MIXTURE, top_k=chosen_experts)
    slow = replace(FREE, size=64, bytes_per_s=1e9)
    sizes = {"expert": 64, "nodes": nodes, "expert_group": replace(slow, bytes_per_s=1e18), "expert_network": slow}
    once = exchange.experts_exchange_s(facts(model, choices={"once_a_node": 1}, **sizes), QUIET)
    every = exchange.experts_exchange_s(facts(model, **sizes), QUIET)
    to_all = 2 * (nodes - 1) * TOKENS * 4096 * 2 / 1e9
    assert once <= min(every, to_all) * (1 + 1e-12)
    if chosen_experts == 1:
        assert once == pytest.approx(every)


def test_a_device_holds_its_part():
    experts, rest = exchange.held(facts(MIXTURE, tensor=2, stage=4, expert=8))
    every = 8 * 3 * 4096 * 2048 * 64
    assert experts == pytest.approx(every / (2 * 4 * 8))
    assert rest == pytest.approx((float(MIXTURE.parameters) - every) / (2 * 4))


@pytest.mark.parametrize(("own", "fsdp", "expert"), [(0, 8, 8), (0, 16, 4), (0, 4, 8), (1, 8, 8), (1, 1, 8), (0, 1, 8)])
def test_replicas_reduce_every_experts_gradient_once(own, fsdp, expert):
    """Whatever the ranks of one replica, together they hold each expert: their gradients add up to the model's."""
    run = facts(MIXTURE, data=2, fsdp=fsdp, expert=expert, expert_own=own, data_group=ALONE, expert_data_group=FREE)
    moved = exchange.replicas_s(run, QUIET, 1.0) * 100e9 / (7 / 8)
    ranks_of_a_replica = fsdp * expert if own else max(fsdp, expert)
    assert moved * ranks_of_a_replica == pytest.approx(8 * float(MIXTURE.experts_parameters))


def test_messages_between_stages():
    """One microbatch's activations, each tensor rank its part (Narayanan et al. 2021, section 4.1)."""
    run = facts(stage=2, tensor=4, send_group=replace(LINK, network=1.0))
    assert exchange.send_s(run, replace(IDEAL, network=0.5)) == pytest.approx(1e-5 + TOKENS * 4096 * 2 / 4 / 50e9)
    assert exchange.send_s(facts(send_group=LINK), IDEAL) == 0


def test_experts_weights_are_gathered_over_their_own_group():
    """64 experts of 8 layers over 8 expert ranks are gathered by 4, the rest by 8."""
    own = replace(FREE, size=4)
    run = facts(MIXTURE, fsdp=4, expert=8, expert_own=1, fsdp_group=FREE, expert_fsdp_group=own)
    experts, rest = exchange.held(run)
    found = exchange.weights_s(run, QUIET, 2.0)
    assert found == pytest.approx((7 / 8 * float(rest) + 3 / 4 * float(experts)) * 2 / 100e9)
    assert exchange.weights_s(facts(MODEL), QUIET, 2.0) == 0
