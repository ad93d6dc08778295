"""In a worker: a small step that no calibration was fitted to, priced and timed; and answers of made machines."""

from __future__ import annotations

import time
from typing import Any


def attached() -> dict[str, Any]:
    return {"platform": "cpu", "device_kind": "cpu", "devices": 4, "per_process": 4, "processes": 1, "runtime": ""}


def no_devices() -> None:
    raise RuntimeError("no accelerator")


def priced_and_timed(calibration: dict[str, Any], devices: int) -> dict[str, Any]:
    """A two-layer perceptron's step, its batch split over the devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from jaxplan.compile.hlo import parse
    from jaxplan.compile.timeline import timeline
    from jaxplan.machine.attached import AttachedCalibration
    from jaxplan.machine.attached_machine import attached_machine
    from jaxplan.machine.placement import place

    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    params = jax.device_put([0.1 * jnp.ones((300, 700)), 0.1 * jnp.ones((700, 300))], whole)
    batch = jax.device_put(jnp.ones((384, 300)), split)

    def step(params: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jax.nn.gelu(x @ p[0]) @ p[1]) ** 2)

        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))

    compiled = jax.jit(step, out_shardings=whole).lower(params, batch).compile()
    times = []
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(compiled(params, batch))
        times.append(time.perf_counter() - start)
    machine = attached_machine(AttachedCalibration.from_json(calibration), devices)
    priced = timeline(parse(compiled.as_text()), machine, place(machine, {"data": devices}))
    return {"measured_s": min(times), "predicted_s": priced.value_s, "uncovered": dict(priced.uncovered)}
