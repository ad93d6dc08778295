"""How long a profile of 200 steps on 8 devices takes to read, to measure and to compare, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/read_profile.py [FOLDER]

Without a folder a small step (4 scanned layers, FSDP over 4 and tensor parallelism over 2 virtual CPU devices) is
recorded into a temporary one first; with one it is kept there, and found there the next time.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from jaxplan.profile.compare import compare
from jaxplan.profile.measured import measure
from jaxplan.profile.trace import read

STEPS = 200
MESH = {"data": 4, "tensor": 2}
LAYERS, WIDTH, HIDDEN, BATCH = 4, 64, 256, 32


def record(folder: Path) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), (jax.sharding.AxisType.Auto,) * len(MESH))

    def over(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def loss(weights, x):
        def layer(x, weight):
            up, down = (
                jax.lax.with_sharding_constraint(one, over(*axes))
                for one, axes in zip(weight, ((None, "tensor"), ("tensor", None)), strict=True)
            )
            return jax.lax.with_sharding_constraint(x + jnp.tanh(x @ up) @ down, over("data", None)), None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    @jax.jit
    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    weights = (
        jax.device_put(jnp.full((LAYERS, WIDTH, HIDDEN), 0.01), over(None, "data", "tensor")),
        jax.device_put(jnp.full((LAYERS, HIDDEN, WIDTH), 0.01), over(None, "tensor", "data")),
    )
    x = jax.device_put(jnp.ones((BATCH, WIDTH)), over("data", None))
    weights, value = step(weights, x)
    value.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)
    for i in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            weights, value = step(weights, x)
            value.block_until_ready()
    jax.profiler.stop_trace()


def main(folder: Path) -> None:
    if not list(folder.glob("**/*.xplane.pb")):
        record(folder)
    size = max(file.stat().st_size for file in folder.glob("**/*.xplane.pb"))
    start = time.process_time()
    trace = read(folder)
    reading = time.process_time()
    measured = measure(trace, axes=MESH)
    measuring = time.process_time()
    compare(measured)
    done = time.process_time()
    count = f"{len(trace.steps)} steps, {len(trace.devices)} devices, {trace.device.size:,} operations"
    print(f"{count}, {size / 1e6:.1f} MB; seconds of CPU time:")
    print(f"read {reading - start:.2f}, measure {measuring - reading:.2f}, compare {done - measuring:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
