"""Where the axes of a plan's mesh lie on its machine, as numbers that can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxplan.machine.topology import Machine


def placement_json(path: Path) -> dict[str, Any]:
    """Levels of the machine, innermost first, and for each mesh axis its stretch at every level.

    A device with coordinate `c` at a level has the index `c // stride % factor` there, for each axis.

    Raises:
        InputError: the file is no plan.
        ValueError: the mesh cannot be laid on the machine.
    """
    from jaxplan.machine.assignment import lengths  # not at the top: TensorBoard starts without them
    from jaxplan.machine.placement import place
    from jaxplan.plan.files import read

    plan = read(path).plan
    machine = plan.machine
    placed = place(machine, plan.sizes)
    axes = []
    for axis, size in placed.sizes.items():
        stretches = [
            {"level": level, "factor": found.size, "stride": found.stride}
            for level, segments in enumerate(placed.segments((axis,)))
            for found in segments
        ]
        axes.append({"axis": axis, "size": size, "links": placed.describe(axis), "stretches": stretches})
    names = _level_names(machine)
    levels = [
        {"short": short, "name": name, "length": length}
        for (short, name), length in zip(names, lengths(machine), strict=True)
    ]
    return {"kind": machine.kind, "machine": machine.name, "levels": levels, "axes": axes}


def _level_names(machine: Machine) -> list[tuple[str, str]]:
    """What every level is called, shortly and after its length."""
    from jaxplan.machine.cluster import FABRICS

    if machine.kind != "tpu":
        return [("chip", f"chips on {FABRICS[machine.chip.fabric]}"), ("domain", "domains on the network")]
    shapes = ["ring" if wrap else "line" for wrap in machine.wraps]
    torus = [(name, f"along ICI {name} ({shape})") for name, shape in zip("xyz", shapes, strict=False)]
    slices = [("slice", "slices on the data-centre network")] if machine.slices > 1 else []
    return [("device", "devices of a chip"), *torus, *slices]
