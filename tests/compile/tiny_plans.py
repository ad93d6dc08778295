"""A small real plan for tests: a four-layer decoder on eight devices."""

from jaxplan.machine import catalogue
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.workload.shape import ModelShape, Workload

AXES = ("data", "fsdp", "tensor")


def tiny_plan(mesh="2x4", chip="v5e", sizes=(2, 2, 2), attention="splash", head_dim=128, batch=16, **more):
    """Layers 2, embed 256, vocab 1024, seq 256; two microbatches, full rematerialization."""
    machine = catalogue.machine(mesh, chip, None)
    model = ModelShape("tiny", 2, 256, 512, 8, 4, head_dim, 1024)
    axes = tuple(MeshAxis(name, size, name) for name, size in zip(AXES, sizes, strict=True))
    more = {"remat": "full", "microbatches": 2, **more}
    return Plan(machine, Workload(model, batch, 256), axes, attention=attention, **more)
