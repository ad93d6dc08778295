"""What test_target asks workers for."""

import dataclasses
import re

import numpy as np

from jaxplan.compile import reading
from jaxplan.compile.job import captured_stderr
from jaxplan.compile.target import devices, mesh
from jaxplan.machine.placement import place
from jaxplan.machine.topology import Machine


def device_table(machine, platform):
    found = devices(Machine.from_json(machine), platform)
    names = ("core_on_chip", "slice_index")
    return [(d.id, list(getattr(d, "coords", [])), *(getattr(d, name, 0) for name in names)) for d in found]


def across_slices(machine, sizes):
    """A sum over `data`, an exchange over it, and a sum over `tensor`, compiled.

    Returns (partitions, what goes over the network as (kind, members), replica groups).
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    made = Machine.from_json(machine)
    on = mesh(made, sizes, "tpu", place(made, sizes).order)
    rows = PartitionSpec(("data", "tensor"))

    def step(x):
        exchanged = jax.lax.all_to_all(x, "data", 0, 0, tiled=True)
        return jax.lax.psum(x, "data"), exchanged, jax.lax.psum(x, "tensor")

    mapped = jax.shard_map(step, mesh=on, in_specs=rows, out_specs=rows, check_vma=False)
    argument = jax.ShapeDtypeStruct((64 * made.devices, 128), jnp.float32, sharding=NamedSharding(on, rows))
    text = jax.jit(mapped).lower(argument).compile().as_text()
    (partitions,) = re.findall(r"num_partitions=(\d+)", text)
    sent = re.findall(r' send\(.*_xla_megascale_target="?(.*?)"?,_xla_megascale_transfer_type="(\w+)"', text)
    groups = re.findall(r"replica_groups=(\{\{.*?\}\})", text)
    return int(partitions), [(kind, members) for members, kind in sent], groups


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


def collectives_over_slices(machine, sizes):
    """The HLO text of one collective of each kind over `data` and of a sum over `tensor`."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    made = Machine.from_json(machine)
    on = mesh(made, sizes, "tpu", place(made, sizes).order)
    rows = PartitionSpec(("data", "tensor"))
    ring = [(i, (i + 1) % sizes["data"]) for i in range(sizes["data"])]

    def step(x):
        return (
            lax.psum(x, "data"),
            lax.all_gather(2 * x, "data", tiled=True),
            lax.psum_scatter(3 * x, "data", tiled=True),
            lax.all_to_all(4 * x, "data", 0, 0, tiled=True),
            lax.ppermute(5 * x, "data", ring),
            lax.psum(6 * x, "tensor"),
        )

    mapped = jax.shard_map(step, mesh=on, in_specs=rows, out_specs=rows, check_vma=False)
    argument = jax.ShapeDtypeStruct((256 * made.devices, 128), jnp.float32, sharding=NamedSharding(on, rows))
    return jax.jit(mapped).lower(argument).compile().as_text()
