"""Every NVIDIA chip's target text compiles a sharded program through the CUDA plugin."""

import dataclasses

import pytest
from compilers import needs, run

from jaxplan.machine import catalogue
from jaxplan.machine.target_config import target_config, text_proto

NVIDIA = [chip.id for chip in catalogue.chips() if chip.vendor == "NVIDIA"]

COMPILE = """
import numpy as np, jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
text, flags = argument
shape = {"topology_name": "x", "topology": "1x8x1"}
topology = topologies.get_topology_desc(platform="cuda", target_config=text, **shape)
sharding = NamedSharding(Mesh(np.array(topology.devices), ("x",)), P("x", None))
x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=sharding)
compiled = jax.jit(lambda a, b: jnp.sum(a @ b)).lower(x, x).compile(compiler_options=flags)
gathered = "all-gather" in compiled.as_text()
print(json.dumps([topology.devices[0].device_kind, [d.id for d in topology.devices], gathered]))
"""


@pytest.mark.compiler
@needs("jax_cuda13_plugin")
@pytest.mark.parametrize("name", NVIDIA)
def test_target_compiles_with_production_flags(name):
    chip = catalogue.chip(name)
    flags = dict(catalogue.family_of_chip(chip).fixed["compiler_flags"])
    kind, ids, gathered = run(COMPILE, [target_config(chip), flags])
    assert kind == chip.target.device_name
    assert ids == list(range(8))
    assert gathered


def test_every_nvidia_chip_has_a_target():
    assert all(catalogue.chip(name).target for name in NVIDIA) and len(NVIDIA) == 13


def test_text_holds_every_figure_of_the_chip():
    text = target_config(catalogue.chip("h100"))
    # NVIDIA H100 SXM: 132 SMs, 50 MiB of L2, compute capability 9.0 (Hopper architecture white paper)
    lines = (
        "core_count: 132",
        "l2_cache_size: 52428800",
        "major: 9 minor: 0",
        "device_memory_size: 84942979072",
    )
    for line in lines:
        assert line in text


@pytest.mark.parametrize("chip", ["v5e", "mi300x"])
def test_no_target_is_an_error(chip):
    with pytest.raises(ValueError, match="no \\[target\\]"):
        target_config(catalogue.chip(chip))


@pytest.mark.parametrize(
    ("field", "value"),
    [("core_count", 0), ("compute_capability", "9"), ("dnn_version", "9.x.0"), ("device_name", 'a"b')],
)
def test_figures_are_proved_before_any_compiler_sees_them(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(catalogue.chip("h100").target, **{field: value})


def test_versions_are_spelled_as_messages():
    target = dataclasses.replace(catalogue.chip("h100").target, dnn_version="9.1.2")
    assert "dnn_version_info { major: 9 minor: 1 patch: 2 }" in text_proto(target)
