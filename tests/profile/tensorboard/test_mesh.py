"""Stretches of mesh axes over a machine: what the tab draws is where devices really are."""

import itertools
import math

import pytest

from jaxplan.machine import catalogue
from jaxplan.machine.assignment import lengths
from jaxplan.machine.placement import place
from jaxplan.plan.files import write
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.profile.tensorboard.mesh import placement_json
from jaxplan.workload.shape import Workload


def placed(tmp_path, mesh, chip, sizes):
    machine = catalogue.machine(mesh, chip, None)
    workload = Workload(catalogue.model("llama3-8b"), batch=256, seq=8192)
    plan = Plan(machine, workload, mesh_axes(sizes), remat="full", microbatches=1, attention="splash")
    path = write(PlanRecord(plan), tmp_path / "plan.json")
    return machine, placement_json(path)


CASES = [
    ("8x16", "v5e", {"fsdp": 32, "tensor": 4}),
    ("4x4x8", "v5p", {"data": 2, "fsdp": 16, "tensor": 4}),
    ("2x(4x4)", "v5e", {"data": 2, "fsdp": 16}),
    ("4x8", "h100", {"fsdp": 4, "tensor": 8}),
    ("4x8", "h100", {"data": 2, "fsdp": 8, "tensor": 2}),
]


@pytest.mark.parametrize(("mesh", "chip", "sizes"), CASES)
def test_coordinates_and_stretches_give_back_the_mesh(tmp_path, mesh, chip, sizes):
    """The rule in the docstring, applied to every device, gives the order of devices in which programs are compiled."""
    machine, found = placed(tmp_path, mesh, chip, sizes)
    assert [level["length"] for level in found["levels"]] == list(lengths(machine))
    order = place(machine, {axis["axis"]: axis["size"] for axis in found["axes"]}).order
    outermost_first = [range(level["length"]) for level in reversed(found["levels"])]
    for index, position in enumerate(itertools.product(*outermost_first)):
        position = position[::-1]       # innermost first: it counts fastest
        along = []
        for axis in found["axes"]:
            place_along, unit = 0, 1
            for stretch in axis["stretches"]:
                place_along += position[stretch["level"]] // stretch["stride"] % stretch["factor"] * unit
                unit *= stretch["factor"]
            along.append(place_along)
        assert order[tuple(along)] == index


def test_levels_say_what_they_are(tmp_path):
    _, torus = placed(tmp_path, "8x16", "v5e", {"fsdp": 128})
    assert [level["name"] for level in torus["levels"]] == [
        "devices of a chip", "along ICI x (line)", "along ICI y (ring)",      # v5e: 16 wraps, 8 does not
    ]
    _, hosts = placed(tmp_path, "4x8", "h100", {"fsdp": 32})
    assert [level["name"] for level in hosts["levels"]] == ["chips on NVLink", "domains on the network"]
    assert math.prod(level["length"] for level in hosts["levels"]) == 32
