"""What test_target asks workers for."""

import dataclasses

import numpy as np

from jaxplan.compile import reading
from jaxplan.compile.job import captured_stderr
from jaxplan.compile.target import devices
from jaxplan.machine.topology import Machine


def device_table(machine, platform):
    found = devices(Machine.from_json(machine), platform)
    return [(d.id, getattr(d, "core_on_chip", 0), list(getattr(d, "coords", []))) for d in found]


def involuntary_rematerialization():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

    def place(*spec):
        return NamedSharding(mesh, PartitionSpec(*spec))

    def add(a, b):
        return jax.lax.with_sharding_constraint(a + b, place(None, ("x", "y"), None))

    cube = jax.ShapeDtypeStruct((16, 16, 16), np.float32, sharding=place("y", None, "x"))
    jax.jit(add).lower(cube, cube).compile()
    return [dataclasses.asdict(found) for found in reading.warnings(captured_stderr())]
