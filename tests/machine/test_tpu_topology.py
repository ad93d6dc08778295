"""What the catalogue says of TPU slices, against libtpu's own topology descriptions."""

import math
import re

import pytest
from compilers import needs, run

from jaxplan.machine import catalogue
from jaxplan.machine.placement import coordinates, place
from jaxplan.machine.rates import gathers_on_all_axes, scatters_on_all_axes

SLICES = [("4x8", "v5e"), ("16x8", "v5e"), ("1x1", "v5e"), ("2x4", "v6e"), ("4x4x8", "v5p"), ("2x4x4", "v5p")]
SLICES += [("4x4x4", "tpu7x"), ("2x2x1", "tpu7x"), ("4x4x4", "v4"), ("4x8", "v3")]

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
@pytest.mark.parametrize("chip", ["v3", "v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_production_flags_are_accepted(chip):
    machine = catalogue.machine("2x2" if chip in ("v3", "v5e", "v6e") else "2x2x1", chip)
    argument = [machine.topology_name, dict(machine.topology_options), dict(machine.compiler_flags), 512]
    assert run(COMPILE, argument) == "compiled"


@pytest.mark.compiler
@needs("libtpu")
@pytest.mark.parametrize("chip", ["v3", "v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_usable_memory_is_the_compilers_limit(chip):
    machine = catalogue.machine("2x2" if chip in ("v3", "v5e", "v6e") else "2x2x1", chip)
    message = run(COMPILE, [machine.topology_name, dict(machine.topology_options), {}, 2**18])
    limit = re.search(r"exceeds available HBM \(([\d.]+)G\)", message)
    assert limit, message[:500]
    # printed with two decimals of a GiB
    assert math.isclose(float(limit[1]), machine.device_hbm_bytes / 2**30, abs_tol=0.005)


ALGORITHMS = """
import re
import numpy as np, jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
name, options, order, kind = argument
devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
devices = np.array(sorted(devices, key=lambda d: d.id), dtype=object)
mesh = Mesh(devices[np.array(order)], ("data", "fsdp", "tensor"))
rows = P("fsdp", None)
def abstract(shape, spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
if kind == "all-gather":
    function, x, out = (lambda x: x), abstract((8192, 4096), rows), P()
else:
    function, x, out = (lambda x: jnp.sum(x, 0)), abstract((256, 8192, 4096), P("fsdp", None, None)), rows
text = jax.jit(function, out_shardings=NamedSharding(mesh, out)).lower(x).compile().as_text()
print(json.dumps(re.findall(r'collective_algorithm_config":(.{0,300})', text)[:1]))
"""


@pytest.mark.compiler
@needs("libtpu")
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
@pytest.mark.parametrize(
    ("mesh", "chip", "sizes"),
    [
        ("8x16", "v5e", (1, 128, 1)),
        ("16x16", "v5e", (1, 256, 1)),
        ("4x4x8", "v5p", (1, 128, 1)),
        ("4x4x8", "v5p", (1, 32, 4)),
        ("2x4x4", "v5p", (1, 32, 1)),
        ("4x8", "v3", (1, 32, 2)),
    ],
)
def test_which_collectives_use_all_axes(mesh, chip, sizes, kind):
    """The compiler names its algorithm: several colours (one an axis), or one ring through the group."""
    machine = catalogue.machine(mesh, chip)
    placed = place(machine, dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)))
    argument = [machine.topology_name, dict(machine.topology_options), placed.order.tolist(), kind]
    algorithm = run(ALGORITHMS, argument)[0]
    levels = zip(placed.segments(("fsdp",))[1:], machine.wraps, strict=True)
    stretches = [(s, s.closes(wraps)) for level, wraps in levels for s in level]
    says = gathers_on_all_axes if kind == "all-gather" else scatters_on_all_axes
    many = "NDRing" in algorithm or "StrategyND" in algorithm
    assert says(machine, stretches) is many, algorithm
