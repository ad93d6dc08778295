"""What the catalogue says of TPU slices, against libtpu's own topology descriptions."""

import math
import re

import pytest
from compilers import needs, run

from jaxplan.machine import catalogue
from jaxplan.machine.placement import coordinates

SLICES = [("4x8", "v5e"), ("16x8", "v5e"), ("1x1", "v5e"), ("2x4", "v6e"), ("4x4x8", "v5p"), ("2x4x4", "v5p")]
SLICES += [("4x4x4", "tpu7x"), ("2x2x1", "tpu7x"), ("4x4x4", "v4")]

DESCRIBE = """
import jax
from jax.experimental import topologies
found = []
for name, options in argument:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    found.append([[d.id, d.core_on_chip, *d.coords] for d in devices])
print(json.dumps(found))
"""

COMPILE = """
import numpy as np, jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
name, options, flags, n = argument
devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
sharding = NamedSharding(Mesh(np.array(devices), ("x",)), P("x", None) if n < 10000 else P())
x = jax.ShapeDtypeStruct((n, n), jnp.float32, sharding=sharding)
try:
    jax.jit(lambda a: a @ a + 1).lower(x).compile(compiler_options=flags)
    print(json.dumps("compiled"))
except Exception as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.compiler
@needs("libtpu")
def test_device_counts_and_canonical_order():
    machines = [catalogue.machine(mesh, chip) for mesh, chip in SLICES]
    described = run(DESCRIBE, [[m.topology_name, dict(m.topology_options)] for m in machines])
    for machine, devices in zip(machines, described, strict=True):
        assert len(devices) == machine.devices, machine.name
        for index, *position in devices:
            levels = 1 + len(machine.shape)
            assert tuple(position[:levels]) == coordinates(machine, index), machine.name


@pytest.mark.compiler
@needs("libtpu")
@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_production_flags_are_accepted(chip):
    machine = catalogue.machine("2x2" if chip in ("v5e", "v6e") else "2x2x1", chip)
    argument = [machine.topology_name, dict(machine.topology_options), dict(machine.compiler_flags), 512]
    assert run(COMPILE, argument) == "compiled"


@pytest.mark.compiler
@needs("libtpu")
@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_usable_memory_is_the_compilers_limit(chip):
    machine = catalogue.machine("2x2" if chip in ("v5e", "v6e") else "2x2x1", chip)
    message = run(COMPILE, [machine.topology_name, dict(machine.topology_options), {}, 2**18])
    limit = re.search(r"exceeds available HBM \(([\d.]+)G\)", message)
    assert limit, message[:500]
    # printed with two decimals of a GiB
    assert math.isclose(float(limit[1]), machine.device_hbm_bytes / 2**30, abs_tol=0.005)
