"""Pipelines: closed forms as published, the simulator against them, and against longest paths where stages differ."""

from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from jaxplan.estimate.pipeline import (
    FORMS,
    bubble_fraction,
    in_flight,
    pipeline_time,
    simulate,
    stage_bytes,
    stage_times,
)
from jaxplan.estimate.schedules.form import Task, round_and_round
from jaxplan.estimate.schedules.looped import ticks
from jaxplan.estimate.schedules.timeline import ROW, Timeline, play
from jaxplan.plan.schedule import SCHEDULES, reason

# seconds whose parts by chunk are whole numbers, so that sums are exact; W no longer than F or B
EQUAL_STAGES = [(12, 12, 12), (12, 24, 12), (24, 12, 0), (36, 24, 12)]
LOOPED = ("gpipe", "circular")
NOT_DUALPIPE = [name for name in SCHEDULES if name != "dualpipe"]

# the bubble as its source gives it, in seconds of one device; f, b, w as in jaxplan.estimate.schedules.form
PUBLISHED_IDLE = {
    "gpipe": lambda p, v, f, b, w: (p - 1) * (f + b + w),             # arXiv:1811.06965, section 2.3
    "circular": lambda p, v, f, b, w: (p - 1) * (f + b + w) / v,      # arXiv:2211.05953
    "1f1b": lambda p, v, f, b, w: (p - 1) * (f + b + w),              # arXiv:2104.04473, section 2.2.1
    "interleaved": lambda p, v, f, b, w: (p - 1) * (f + b + w) / v,   # arXiv:2104.04473, section 2.2.2
    "zero-bubble": lambda p, v, f, b, w: (p - 1) * (f + b - w),       # arXiv:2401.10241, table 2
}


@cache
def legal(name: str) -> list[tuple[int, int, int]]:
    """Stages, microbatches and repeats that the schedule takes."""
    counts = product((1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8, 16, 24), (1, 2, 3, 4))
    return [(p, m, v) for p, m, v in counts if not reason(name, p, m, v, p * v)]


def test_every_schedule_has_a_form():
    assert list(FORMS) == list(SCHEDULES)


def test_four_stages_sixteen_microbatches():
    for name in ("gpipe", "1f1b"):
        assert simulate(name, 4, 16, 1, 1.0, 2.0).idle_share == pytest.approx([3 / 19] * 4, rel=1e-15)
        assert bubble_fraction(name, 4, 16) == 3 / 16


@pytest.mark.parametrize("name", NOT_DUALPIPE)
def test_bubble_is_the_published_one(name):
    assert len(legal(name)) >= 20
    for (p, m, v), (f, b, w) in product(legal(name), EQUAL_STAGES):
        idle, work = PUBLISHED_IDLE[name](p, v, f, b, w), m * (f + b + w)
        assert bubble_fraction(name, p, m, v, f, b, w) == pytest.approx(idle / work, rel=1e-14)
        for textbook in {False, name in LOOPED}:
            played = simulate(name, p, m, v, f, b, w, textbook=textbook)
            assert played.idle_s.tolist() == [idle] * p
            assert played.step_s == idle + work == pipeline_time(name, p, m, v, f, b, w)


@pytest.mark.parametrize("overlapped", [0, 4, 9])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (6, 12), (8, 20), (12, 24)])
def test_dualpipe_bubble_is_the_published_one(p, m, overlapped):
    """arXiv:2412.19437, table 2: (PP/2 - 1)(F&B + B - 3W), B a whole backward pass; the longest wait."""
    f, b, w = 10, 10, 8
    together = f + b + w - overlapped
    idle = (p / 2 - 1) * (together + (b + w) - 3 * w)
    played = simulate("dualpipe", p, m, 1, f, b, w, overlapped_s=together)
    assert played.idle_s.max() == idle
    assert played.step_s == pipeline_time("dualpipe", p, m, 1, f, b, w, together)
    assert played.bubble_fraction.max() == pytest.approx(bubble_fraction("dualpipe", p, m, 1, f, b, w, together))


def test_dualpipe_table_is_off_by_no_more_than_forward_and_backward_differ():
    for p, f, b in product((4, 8), (4, 7, 10), (4, 7, 10)):
        error = simulate("dualpipe", p, 2 * p, 1, f, b, 4).step_s - pipeline_time("dualpipe", p, 2 * p, 1, f, b, 4)
        assert abs(error) <= (p / 2 - 1) * abs(f - b)


def test_a_long_weight_gradient_fills_no_more_than_a_forward_or_a_backward():
    for p, (f, b, w) in product((2, 4, 8), [(12, 12, 24), (12, 36, 24), (36, 12, 24)]):
        played = simulate("zero-bubble", p, 2 * p, 1, f, b, w)
        assert played.idle_s.tolist() == [(p - 1) * max(f, b)] * p
        assert bubble_fraction("zero-bubble", p, 2 * p, 1, f, b, w) == pytest.approx(played.bubble_fraction[0])


@pytest.mark.parametrize(
    ("name", "plan", "expected"),
    [
        ("1f1b", (4, 16, 1), [4, 3, 2, 1]),                   # arXiv:2104.04473, section 2.2.1: at most p
        ("1f1b", (4, 2, 1), [2, 2, 2, 1]),
        ("interleaved", (4, 16, 2), [5.5, 4.5, 3.5, 2.5]),    # first: p (1 + (p-1)/(p v)), arXiv:2205.05198, 4.2.3
        ("interleaved", (4, 4, 2), [4, 4, 3.5, 2.5]),         # m at the most
        ("zero-bubble", (4, 16, 1), [4, 4, 4, 4]),            # arXiv:2401.10241, table 2
        ("dualpipe", (8, 20, 1), [9] * 8),                    # arXiv:2412.19437, table 2: PP + 1
        ("gpipe", (4, 16, 1), [19] * 4),                      # our scan keeps each of its 16 + 3 ticks
        ("circular", (4, 16, 2), [35 / 2] * 4),
    ],
)
def test_activations_in_flight(name, plan, expected):
    assert in_flight(name, *plan, stage=np.arange(plan[0])).tolist() == expected
    assert simulate(name, *plan, 1.0, 1.0, 1.0).peak_activations.tolist() == expected


@pytest.mark.parametrize("name", LOOPED)
def test_without_the_scan_every_microbatch_is_held(name):
    for p, m, v in legal(name):
        assert in_flight(name, p, m, v, textbook=True) == m
        assert simulate(name, p, m, v, 12, 12, textbook=True).peak_activations.tolist() == [m] * p


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_flight_is_what_a_played_step_holds_and_most_on_the_first_stage(name):
    for p, m, v in legal(name):
        held = in_flight(name, p, m, v, stage=np.arange(p))
        assert simulate(name, p, m, v, 12, 12, 12).peak_activations == pytest.approx(held, rel=1e-14)
        assert held.max() == in_flight(name, p, m, v)


@pytest.mark.parametrize("name", SCHEDULES)
def test_many_plans_at_once_are_each_plan_alone(name):
    plans = np.array(legal(name)).T
    alone = [bubble_fraction(name, *plan) for plan in plans.T.tolist()]
    assert bubble_fraction(name, *plans).tolist() == alone
    assert in_flight(name, *plans).tolist() == [in_flight(name, *plan) for plan in plans.T.tolist()]


def longest_paths(name, played, p, v, seconds, send):
    """When each task can end at the earliest, given the order of each device: the longest path that leads to it.

    Written from the definitions: a microbatch goes forwards along its route and back, a device does one task at a
    time. Tasks that share a start on a device (dualpipe) are one node.
    """
    rows = played.rows.tolist()
    by_key = {(d, kind, i, c): (d, start) for d, kind, i, c, start, _ in rows}
    nodes = sorted({(d, start) for d, _, _, _, start, _ in rows})
    before = {two: one for one, two in pairwise(nodes) if one[0] == two[0]}
    members = {node: [row[:4] for row in rows if (row[0], row[4]) == node] for node in nodes}

    def route(c):
        if name != "dualpipe":
            return [(d, k) for k in range(v) for d in range(p)]
        return [(d, c) for d in (range(p) if c == 0 else reversed(range(p)))]

    def inputs(d, kind, i, c):
        if kind == "W":
            return [(d, "B", i, c)]
        there = route(c)
        place = there.index((d, c)) + (-1 if kind == "F" else 1)
        other = [(there[place][0], kind, i, there[place][1])] if 0 <= place < len(there) else []
        return other if kind == "F" else [*other, (d, "F", i, c)]

    def length(d, kind, i, c):
        stage, chunk = (p - 1 - d, 0) if name == "dualpipe" and c == 1 else (d, 0 if name == "dualpipe" else c)
        whole = kind == "B" and (d, "W", i, c) not in by_key
        return seconds[kind][stage, chunk] + (seconds["W"][stage, chunk] if whole else 0.0)

    @cache
    def end(node):
        starts = [0.0] + ([end(before[node])] if node in before else [])
        for key in members[node]:
            starts += [end(by_key[other]) + send * (other[0] != node[0]) for other in inputs(*key)]
        return max(starts) + sum(length(*key) for key in members[node])

    return [end(node) for node in nodes], [
        next(row[5] for row in rows if (row[0], row[4]) == node) for node in nodes
    ]


@pytest.mark.parametrize("send", [0.0, 0.375])
@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [
        ("gpipe", 3, 5, 1), ("gpipe", 5, 2, 1), ("circular", 3, 4, 2), ("1f1b", 4, 9, 1), ("1f1b", 4, 3, 1),
        ("interleaved", 3, 6, 2), ("interleaved", 2, 4, 3), ("zero-bubble", 4, 7, 1), ("dualpipe", 4, 10, 1),
        ("dualpipe", 6, 12, 1),
    ],
)
def test_uneven_stages_end_when_the_longest_path_does(name, p, m, v, send):
    rng = np.random.default_rng(p * 100 + m * 10 + v)
    seconds = {kind: rng.uniform(0.5, 3.0, (p, v)) for kind in "FBW"}
    played = simulate(name, p, m, v, seconds["F"], seconds["B"], seconds["W"], send, textbook=True)
    passes = 3 if name in ("zero-bubble", "dualpipe") else 2
    kinds = {kind: np.sum(played.rows["kind"] == kind) for kind in "FB"}
    assert kinds == {"F": p * m * v, "B": p * m * v}
    assert len(played.rows) == passes * p * m * v or name == "dualpipe"
    expected, ends = longest_paths(name, played, p, v, seconds, send)
    assert ends == pytest.approx(expected, rel=1e-12)
    assert played.step_s == pytest.approx(max(expected), rel=1e-12)
    both = seconds["F"] + seconds["B"] + seconds["W"]
    held = both + both[::-1] if name == "dualpipe" else both
    work = m * held.sum(axis=1) / (2 if name == "dualpipe" else 1)
    assert played.busy_s == pytest.approx(work, rel=1e-12)


def test_one_stage_is_never_idle():
    played = simulate("gpipe", 1, 7, 1, 0.1, 0.2, 0.3, send_s=1.0)  # seconds whose sums are rounded
    assert played.idle_s.tolist() == [0.0] and played.step_s == pytest.approx(7 * 0.6)


def test_uneven_gpipe_is_a_flow_shop():
    """Equal jobs through machines in a row take the sum of one job and m - 1 times the slowest machine, each way."""
    forward, backward, m, send = np.array([3.0, 1.0, 2.0, 5.0]), np.array([4.0, 2.0, 7.0, 1.0]), 6, 0.25
    expected = sum(passed.sum() + (m - 1) * passed.max() + 3 * send for passed in (forward, backward))
    assert simulate("gpipe", 4, m, 1, forward, backward, send_s=send, textbook=True).step_s == expected


@pytest.mark.parametrize(("p", "m", "v"), [(4, 16, 1), (3, 2, 1), (4, 4, 3), (3, 5, 2)])
def test_the_scan_of_uneven_stages_is_its_ring(p, m, v):
    """Each tick of our scan waits for the tick before, its own and its neighbour's, in the bubble too."""
    rng = np.random.default_rng(p + m + v)
    forward, backward, send = rng.uniform(1, 3, (p, v)), rng.uniform(1, 3, (p, v)), 0.125
    last = m * v + p - 1
    chunk = np.clip(np.arange(last)[:, None] - np.arange(p), 0, m * v - 1) // m
    clock = np.zeros(p)
    for t in range(last):
        delivered = np.roll(clock, 1) + send if t else clock
        clock = np.maximum(clock, delivered) + forward[np.arange(p), chunk[t]]
    others = np.array([np.delete(clock, s).max() + send for s in range(p)])
    clock = np.maximum(clock, others)
    for t in reversed(range(last)):
        delivered = np.roll(clock, -1) + send if t < last - 1 else clock
        clock = np.maximum(clock, delivered) + backward[np.arange(p), chunk[t]]
    name = "gpipe" if v == 1 else "circular"
    assert simulate(name, p, m, v, forward, backward, send_s=send).step_s == pytest.approx(clock.max(), rel=1e-12)


def test_the_scan_waits_for_every_send():
    p, m, v, send = 4, 8, 2, 0.5
    passes = int(ticks(p, m, v)) * (1.0 + 2.0)
    assert simulate("circular", p, m, v, 2.0, 4.0, send_s=send).step_s == passes + (2 * ticks(p, m, v) - 1) * send


def test_slow_last_stage_sets_the_pace_of_the_scan():
    slow = stage_times(np.ones(8), 0.0, 1.5, stages=4)
    assert simulate("gpipe", 4, 16, 1, slow, slow).step_s == 2 * 19 * 3.5


def test_layers_are_dealt_out_in_order():
    layers = np.arange(1.0, 13.0)
    assert stage_times(layers, 100.0, 1000.0, stages=3).tolist() == [[110], [26], [1042]]
    # chunk c of stage s is group 3 c + s: layers 1-2, 3-4, 5-6, then 7-8, 9-10, 11-12
    assert stage_times(layers, 100.0, 1000.0, 3, 2).tolist() == [[103, 15], [7, 19], [11, 1023]]


def test_dualpipe_devices_hold_a_stage_from_either_end():
    layers = np.full(8, 10.0)
    assert stage_bytes("1f1b", layers, 7.0, 3.0, 4).tolist() == [27, 20, 20, 23]
    assert stage_bytes("dualpipe", layers, 7.0, 3.0, 4).tolist() == [50, 40, 40, 50]
    assert stage_bytes("interleaved", layers, 7.0, 3.0, 4, 2).tolist() == [27, 20, 20, 23]


def test_interleaved_order_of_the_paper():
    """arXiv:2104.04473, section 2.2.2: microbatches in groups of p, 2(p - 1) + (v - 1)p = 10 forwards ahead, 1F1B."""
    rows = simulate("interleaved", 4, 8, 2, 2.0, 4.0).rows
    done = [f"{kind}{i + 1}{'ab'[c]}" for device, kind, i, c, *_ in rows.tolist() if device == 0]
    assert done[:13] == ["F1a", "F2a", "F3a", "F4a", "F1b", "F2b", "F3b", "F4b", "F5a", "F6a", "F7a", "B1b", "F8a"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bubble_fraction("pipedream", 4, 4), "got 'pipedream'"),
        (lambda: bubble_fraction("gpipe", [4, 0], 4), "must be at least 1"),
        (lambda: in_flight("1f1b", 4, 8, stage=4), "stage must be from 0 to stages - 1"),
        (lambda: simulate("dualpipe", 4, 6, 1, 1.0, 1.0), "dualpipe needs twice as many microbatches as stages"),
        (lambda: simulate("gpipe", 4, 6, 1, [1.0, 1.0], 1.0), r"seconds must be one, 4 by stage .* got \(2,\)"),
        (lambda: simulate("gpipe", 4, 6, 1, 1.0, -1.0), "not negative"),
        (lambda: simulate("gpipe", 4, 6, 1, 1.0, np.nan), "finite"),
        (lambda: stage_times(np.ones(7), 0.0, 0.0, 2), "must divide the layers, got 7"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_orders_that_wait_for_each_other_are_refused():
    backward_first = [[(Task("B", 0, 0),), (Task("F", 0, 0),)]]
    seconds = {kind: np.ones((1, 1)) for kind in "FBW"}
    with pytest.raises(ValueError, match="wait for ever"):
        play(backward_first, round_and_round(1, 1, 1), seconds, None, 1, 0.0)


def test_a_device_does_one_task_at_a_time():
    rows = np.array([(0, "F", 0, 0, 0.0, 2.0), (0, "F", 1, 0, 1.0, 3.0)], dtype=ROW)
    with pytest.raises(ValueError, match="must end a task before it starts another"):
        Timeline(rows, 3.0, np.zeros(1), np.ones(1))
    with pytest.raises(ValueError, match="idle time must lie within the step"):
        Timeline(rows[:1], 2.0, np.array([3.0]), np.ones(1))
