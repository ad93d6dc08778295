# ruff: noqa: E501  compilers print long lines
import hlo_fixtures as fixtures
import numpy as np
import pytest

from jaxplan.compile.hlo import HloError
from jaxplan.compile.replica_groups import group_text, mesh_axes, replica_groups, source_target_pairs

# Expected groups written out by hand from the definition of each spelling.
SPELLINGS = [
    ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
    ("{{0,2},{4,6},{1,3},{5,7}}", [[0, 2], [4, 6], [1, 3], [5, 7]]),
    ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("[4,2]<=[2,2,2]T(2,1,0)", [[0, 4], [2, 6], [1, 5], [3, 7]]),
    ("[8]<=[8]", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ("mesh['a'=2,'b'=4] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("mesh['a'=2,'b'=4] {'a','b'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("mesh['a'=8] {'a':(1)2,'a':(4)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ("mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("mesh['a'=2,'b'=4], device_ids=([8]<=[4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", [[3, 1], [2, 0]]),
    ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
]


@pytest.mark.parametrize(("text", "expected"), SPELLINGS)
def test_every_spelling(text, expected):
    groups = replica_groups(text, 8)
    assert sorted(map(sorted, groups.tolist())) == sorted(map(sorted, expected))


@pytest.mark.parametrize(("text", "expected"), SPELLINGS)
def test_every_spelling_is_cut_out_of_an_instruction(text, expected):
    module = fixtures.program(
        f"""%p = f32[8] parameter(0)
        ROOT %a = f32[8] all-reduce(%p), channel_id=1, replica_groups={text}, use_global_device_ids=true, to_apply=%add"""
    )
    assert group_text(module.entry.instruction("a")) == text


@pytest.mark.parametrize(
    "text",
    [
        "@mesh<['a'=2]>{'a'}",
        "{{0,1},{2}}",
        "[2,3]<=[8]",
        "mesh['a'=2] {'z'}",
        "mesh['a'=4], device_ids=(0,1) {'a'}",
        "garbage",
    ],
)
def test_unknown_spellings_are_errors(text):
    with pytest.raises(HloError):
        replica_groups(text, 8)


def test_unknown_spelling_in_an_instruction_is_an_error():
    module = fixtures.program("ROOT %a = f32[8] all-reduce(%p), replica_groups=<new>, to_apply=%add")
    with pytest.raises(HloError, match="unknown way"):
        group_text(module.entry.instruction("a"))


def test_pairs():
    module = fixtures.program(
        'ROOT %a = f32[8] collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}, metadata={op_name="x"}'
    )
    assert source_target_pairs(module.entry.instruction("a")).tolist() == [[0, 1], [1, 2], [2, 0]]


MESH = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("groups", "axes", "whole"),
    [
        ([[0, 1], [2, 3], [4, 5], [6, 7]], ("tensor",), True),
        ([[0, 2], [1, 3], [4, 6], [5, 7]], ("fsdp",), True),
        ([[0, 2, 4, 6], [1, 3, 5, 7]], ("data", "fsdp"), True),
        ([[0, 1, 2, 3, 4, 5, 6, 7]], ("data", "fsdp", "tensor"), True),
        ([[0, 3], [1, 2], [4, 7], [5, 6]], ("fsdp", "tensor"), False),
        ([[0], [1]], (), True),
    ],
)
def test_mesh_axes(groups, axes, whole):
    assert mesh_axes(np.array(groups), MESH) == (axes, whole)


def test_part_of_an_axis_is_not_whole():
    assert mesh_axes(np.arange(8).reshape(4, 2), {"data": 8}) == (("data",), False)


def test_mesh_axes_in_another_numbering():
    order = np.arange(8).reshape(4, 2).T.reshape(2, 2, 2)  # places hold devices 0 2 4 6 1 3 5 7
    assert mesh_axes(np.array([[0, 1], [2, 3]]), MESH, order) == (("data",), True)


def test_devices_outside_the_mesh_are_an_error():
    with pytest.raises(HloError, match="device 8"):
        mesh_axes(np.array([[0, 8]]), MESH)


def test_a_hundred_thousand_devices_are_read_quickly():
    explicit = (
        "{" + ",".join("{" + ",".join(map(str, range(i, i + 8))) + "}" for i in range(0, 131072, 8)) + "}"
    )
    for text in (explicit, "[16384,8]<=[131072]", "mesh['a'=16384,'b'=8] {'b'}"):
        groups = replica_groups(text, 131072)
        assert groups.shape == (16384, 8)
        assert mesh_axes(groups, {"data": 256, "fsdp": 64, "tensor": 8}) == (("tensor",), True)
