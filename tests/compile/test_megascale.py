"""Collectives between slices: the texts that libtpu wrote, and a program that it compiles now."""

import dataclasses

import hlo_fixtures as fixtures
import numpy as np
import pytest

from jaxplan.compile.collectives import collectives
from jaxplan.compile.environment import available, environment
from jaxplan.compile.hlo import HloError, parse
from jaxplan.compile.megascale import Slices
from jaxplan.compile.timeline import timeline
from jaxplan.compile.worker import Job, run
from jaxplan.machine import catalogue
from jaxplan.machine.collectives import seconds
from jaxplan.machine.placement import place

TWO = np.arange(8).reshape(2, 4)  # two slices of four devices, in mesh order


def transfer(kind, target, slices=TWO, axes=None):
    """The collectives of a program that starts such a transfer of 128 bytes and awaits it two instructions later."""
    attributes = (
        "is_host_transfer=true, frontend_attributes={"
        '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="psum.7_0",'
        f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )
    module = fixtures.program(
        f"""%p = f32[32]{{0:T(128)}} parameter(0)
        %after-all = token[] after-all()
        %send = (f32[32]{{0}}, u32[], token[]) send(%p, %after-all), channel_id=2, {attributes}
        %recv = (f32[32]{{0}}, u32[], token[]) recv(%after-all), channel_id=1, {attributes}
        %work = f32[32]{{0}} copy(%p)
        %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
        %recv-done = (f32[32]{{0}}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
        ROOT %out = f32[32]{{0}} get-tuple-element(%recv-done), index=0""",
        header=f"is_scheduled=true, num_partitions={slices.shape[1]}",
    )
    return collectives(module, axes or {"data": 2, "fsdp": 2, "tensor": 2}, slices=Slices(slices))


PAIRS = "{{100000,200000},{100001,200001},{100002,200002},{100003,200003}}"
MOVE = PAIRS.replace(",2", "->2")


@pytest.mark.parametrize(
    ("kind", "target", "expected", "nbytes"),
    [
        # bytes: the gathered result of an all-gather, the message of a permute, elsewhere what a device puts in
        ("ALL_REDUCE", '"{1,2}x{0:3}"', "all-reduce", 128),
        ("ALL_REDUCE", PAIRS, "all-reduce", 128),
        ("ALL_GATHER", '"{1,2}x{0:3}"', "all-gather", 256),
        ("REDUCE_SCATTER", '"{2,1}x{0:1,2:3}"', "reduce-scatter", 128),
        ("ALL_TO_ALL", PAIRS, "all-to-all", 128),
        ("ONE_TO_ONE", MOVE, "collective-permute", 128),
    ],
)
def test_what_a_transfer_is(kind, target, expected, nbytes):
    (one,) = transfer(kind, target)
    assert (one.kind, one.nbytes, one.axes, one.group_size) == (expected, nbytes, ("data",), 2)
    assert (one.part, one.place, one.end) == ("network", 2, 6) and one.whole_axes


@pytest.mark.parametrize(
    ("target", "places", "axes"),
    [
        # the slices in the middle of the mesh: stage 2 x slices 2 x devices 2
        ('"{1,2}x{0:3}"', np.array([[0, 1, 4, 5], [2, 3, 6, 7]]), ("fsdp",)),
        # slices whose devices stand in another order
        (
            "{{100000,200003},{100001,200002},{100002,200001},{100003,200000}}",
            np.array([[0, 1, 2, 3], [7, 6, 5, 4]]),
            ("data",),
        ),
        # whole slices exchange: members of one slice are in the group too
        ("{{100000,100001,100002,100003,200000,200001,200002,200003}}", TWO, ("data", "fsdp", "tensor")),
        # the second axis of the mesh is over slices and inside of them
        ("{{100000,100002,200000,200002},{100001,100003,200001,200003}}", TWO, ("data", "fsdp")),
    ],
)
def test_members_by_their_place_in_the_mesh(target, places, axes):
    (one,) = transfer("ALL_TO_ALL", target, places)
    assert one.axes == axes


def test_partitions_are_those_of_one_slice():
    """With the slices in the middle of the mesh, partition 2 of a slice is four places after partition 0."""
    module = fixtures.program(
        "%p = f32[8]{0:T(128)} parameter(0)\n"
        "ROOT %a = f32[8] all-reduce(%p), channel_id=1, replica_groups={{0,2},{1,3}}, to_apply=%add",
        header="num_partitions=4",
    )
    axes = {"stage": 2, "data": 2, "tensor": 2}
    for places, over in (([[0, 1, 4, 5], [2, 3, 6, 7]], "stage"), ([[0, 1, 2, 3], [4, 5, 6, 7]], "data")):
        (one,) = collectives(module, axes, slices=Slices(np.array(places)))
        assert (one.axes, one.part, one.group_size) == ((over,), "slice", 2)


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("BROADCAST", PAIRS, "unknown type: 'BROADCAST'"),
        ("ALL_REDUCE", "[2,4]<=[8]", "unknown way"),
        ("ALL_REDUCE", '"{1,2,3}x{0:3}"', "outside of 2 slices of 4"),
        ("ALL_REDUCE", '"{1,2}x{0:7}"', "outside of 2 slices of 4"),
    ],
)
def test_what_is_not_known_is_an_error(kind, target, words):
    with pytest.raises(HloError, match=words):
        transfer(kind, target)


def test_a_transfer_without_slices_is_an_error():
    module = fixtures.program(
        "%p = f32[8]{0:T(128)} parameter(0)\n%a = token[] after-all()\n"
        "ROOT %s = (f32[8], u32[], token[]) send(%p, %a), "
        'frontend_attributes={_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    with pytest.raises(HloError, match="given as one slice"):
        collectives(module, {"data": 2, "fsdp": 4})


def test_one_slice_needs_no_such_reading():
    assert Slices.of(place(catalogue.machine("2x4", "v5e"), {"data": 8})) is None


@pytest.mark.compiler
@pytest.mark.skipif(not available("tpu").ok, reason="libtpu is not installed")
def test_every_kind_over_two_slices():
    """data 4 = 2 chips of a slice x 2 slices, one collective of each kind on 128 KiB a device.

    libtpu makes two of each, one for either part; the network moves what is left to one chip of a slice.
    """
    machine, sizes = catalogue.machine("2x(2x4)", "v5e"), {"data": 4, "tensor": 4}
    placed = place(machine, sizes)
    here = environment(8).with_variables(PYTHONPATH=str(__file__).rpartition("/")[0])
    outcome = run(Job("target_jobs:collectives_over_slices", {"machine": machine.to_json(), "sizes": sizes}, here))
    assert outcome.ok, outcome.message
    module = parse(outcome.value)
    found = collectives(module, sizes, slices=Slices.of(placed))
    local = 256 * 128 * 4
    network = {one.kind: one.nbytes for one in found if one.part == "network"}
    assert network == {
        "all-reduce": local // 2,  # after a reduce-scatter in the slice
        "all-gather": 2 * local,  # before an all-gather in the slice
        "reduce-scatter": local // 2,  # after a reduction in the slice
        "all-to-all": local,  # all of it
        "collective-permute": local,  # where the ring leaves the slice
    }
    assert {one.axes for one in found if one.part == "network"} == {("data",)}
    inside = [(one.kind, one.axes, one.nbytes, one.group_size) for one in found if one.part == "slice"]
    for expected in (
        ("reduce-scatter", ("data",), local, 2),  # of the all-reduce
        ("all-gather", ("data",), local, 2),
        ("all-gather", ("data",), 4 * local, 2),
        ("all-reduce", ("tensor",), local, 4),
    ):
        assert expected in inside
    assert all(one.end is not None for one in found if one.part == "network")
    # all transfers share the network: no schedule is faster than their sum
    links = placed.links("data", "network")
    sized = [(one, dataclasses.replace(links, size=one.group_size)) for one in found if one.part == "network"]
    busy = sum(float(seconds(one.kind, one.nbytes, its)) for one, its in sized)
    time = timeline(module, machine, placed)
    assert time.low_s >= busy * (1 - 1e-9) and not time.uncovered
