"""Ways to keep the batch on what is left, worked out by hand, and plans that a checkpoint can be restored to."""

from dataclasses import replace

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import LeafSpec
from jaxplan.search.batches import LearningRate, divides, divisible, row_divisors
from jaxplan.search.degraded import Way, candidates, relative_throughput, restorable, same_state, ways
from jaxplan.search.space import enumerate_space

FAMILY = catalogue.family("dgx-h100")


def gpus(mesh):
    return catalogue.machine(mesh, "h100", None)


@pytest.fixture(scope="module")
def of_batch(workload):
    return lambda batch: replace(workload, batch=batch)


# 15 divides none of embed 256, kv_heads 4, layers 4, and 256 tokens over 2 devices are chunks below 128: data must take
# it. Beside it tensor and group take 1, 2, 4 or 8 devices, which leaves 120, 60, 30 or 15 parts of the batch.
def test_how_meshes_of_15_hosts_cut_a_batch(workload, table):
    assert row_divisors(workload, table, gpus("15x8")) == (15, 30, 60, 120)


@pytest.mark.parametrize(
    ("batch", "parts", "devices", "nearest", "above", "whole"),
    [
        (512, (15, 30, 60, 120), 120, 510, (525, 540, 600), 480),
        (512, (7, 14, 28, 56, 112), 112, 511, (518, 532, 560), 560),      # 448 is 64 away, 560 is 48
        (16, (24,), 24, 24, (24,), 24),                                   # nothing below but no batch at all
        (36, (24,), 24, 24, (48,), 24),                                   # as near below as above: the lower
    ],
)
def test_batches_near_one(batch, parts, devices, nearest, above, whole):
    found = divisible(batch, parts, devices)
    assert (found.nearest, found.above, found.whole) == (nearest, above, whole)


def test_no_legal_mesh_is_an_error():
    with pytest.raises(ValueError, match="no mesh"):
        divisible(8, (), 8)


def test_512_sequences_on_15_hosts_of_16(of_batch, table):
    found = ways(of_batch(512), table, gpus("15x8"), FAMILY)
    said = [(way.kind, way.machine.name, way.idle_chips, way.rows, way.workload.batch) for way in found]
    assert said == [
        ("idle", "h100 8x8", 56, 512, 512),         # of 15, 14, 13, ... hosts 8 are the first power of two
        ("padded", "h100 15x8", 0, 512, 525),
        ("padded", "h100 15x8", 0, 512, 540),
        ("padded", "h100 15x8", 0, 512, 600),
        ("nearest", "h100 15x8", 0, 510, 510),
        ("whole", "h100 15x8", 0, 480, 480),
    ]
    assert [way.padding for way in found] == [0, 13, 28, 88, 0, 0]


@pytest.mark.parametrize(
    ("batch", "mesh"),
    [
        (512, "8x8"),           # half of the replicas
        (480, "15x8"),          # 480 = 4 x 120
        (96, "3x8"),            # 96 = 4 x 24
        (30, "15x8"),           # 30 sequences over 15 replicas of tensor 8
    ],
)
def test_where_a_mesh_divides_the_batch_it_is_kept_on_every_chip(of_batch, table, mesh, batch):
    (way,) = ways(of_batch(batch), table, gpus(mesh), FAMILY)
    assert (way.kind, way.machine, way.rows, way.idle_chips) == ("exact", gpus(mesh), batch, 0)
    assert way.learning_rate(batch) is None


def test_one_of_two_slices_keeps_the_batch(of_batch, table):
    left = catalogue.machine("8x16", "v5e", None)
    assert [way.kind for way in ways(of_batch(512), table, left, catalogue.family("v5e"))] == ["exact"]


def test_on_a_smaller_slice_idle_chips_are_a_smaller_slice_still(of_batch, table):
    # 3 slices are left of 4, and 384 chips cut no batch of 512; without 128 of them 256 do
    left = catalogue.machine("3x(8x16)", "v5e", None)
    first = ways(of_batch(512), table, left, catalogue.family("v5e"))[0]
    assert (first.kind, first.machine.mesh, first.idle_chips) == ("idle", "2x(8x16)", 128)


def test_an_odd_batch_stays_where_heads_and_layers_take_all_chips(of_batch, table):
    # 8 devices: tensor 4 x group 2 leave the batch in one piece, and 7 sequences go through as they are
    assert divides(of_batch(7), table, gpus("1x8"))
    assert not divides(of_batch(7), table, gpus("2x8"))     # 16 devices: two parts at least


def test_rules_of_learning_rates(of_batch):
    rate = Way("whole", gpus("15x8"), of_batch(480), 480, 120).learning_rate(512)
    assert rate == LearningRate(0.9375)
    assert rate.linear == 0.9375 and rate.square_root == pytest.approx(0.968246, abs=1e-6)


@pytest.mark.parametrize("rows", [0, 481])
def test_rows_beyond_the_batch_are_refused(of_batch, rows):
    with pytest.raises(ValueError, match="rows"):
        Way("whole", gpus("15x8"), of_batch(480), rows, 120)


def test_more_chips_than_are_left_are_refused(of_batch):
    with pytest.raises(ValueError, match="left"):
        Way("exact", gpus("16x8"), of_batch(512), 512, 120)


def running(machine, workload, **sizes):
    fields = {"schedule": "circular", "repeats": 2} if sizes.pop("repeats", 1) == 2 else {}
    return Plan(machine, workload, mesh_axes(sizes), "full", 4, "splash", **fields)


def test_layers_stay_in_their_order(workload, table, machine):
    space = enumerate_space(workload, table, machine)
    stages = space.size_of("stage")
    plain = restorable(space, running(machine, workload, fsdp=8))
    # 4 layers over 2 stages in 2 repeats are stored 0 2 1 3; in one repeat, and over 4 stages, 0 1 2 3
    torn = (stages == 2) & (space.repeats == 2)
    assert torn.any() and len(plain) == len(space) - torn.sum()
    assert not ((plain.size_of("stage") == 2) & (plain.repeats == 2)).any()
    looped = restorable(space, running(machine, workload, stage=2, fsdp=4, repeats=2))
    assert len(looped) == torn.sum()
    for found in (plain, looped):
        assert sum(found.rejected.values()) - sum(space.rejected.values()) == len(space) - len(found)


def test_a_looped_plan_cannot_go_on_where_no_pipeline_fits(workload, table, machine):
    plan = running(machine, workload, stage=2, fsdp=4, repeats=2)
    alone = catalogue.machine("1x1", "v5e", None)
    with pytest.raises(InputError, match="another order"):
        candidates(Way("exact", alone, workload, workload.batch, 4), table, plan)


def test_the_state_is_the_same_wherever_it_lies():
    def leaf(shape, spec):
        return LeafSpec("a", shape, "float32", 4, ((), ()), spec)

    assert same_state([leaf((8, 4), (("fsdp",), ()))], [leaf((8, 4), ((), ("tensor",)))])
    assert not same_state([leaf((8, 4), ((), ()))], [leaf((4, 8), ((), ()))])


@pytest.mark.parametrize(
    ("batch", "step_s", "rows", "other_s", "ratio"),
    [(512, 4.0, 512, 8.0, 0.5), (512, 4.0, 480, 4.0, 0.9375), (512, 3.0, 512, 3.2, 0.9375)],
)
def test_throughput_is_rows_over_time(batch, step_s, rows, other_s, ratio):
    assert relative_throughput(batch, step_s, rows, other_s) == pytest.approx(ratio)
