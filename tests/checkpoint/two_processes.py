"""Two processes with two devices each that train, save and restore together; run by test_two_processes.py.

    python two_processes.py INDEX PORT FOLDER MODE
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.checkpoint import Checkpointer, Preemption


def main(index: int, port: int, folder: str, mode: str) -> None:
    jax.distributed.initialize(f"localhost:{port}", 2, index)
    mesh = Mesh(np.array(jax.devices()), ("a",))
    split = NamedSharding(mesh, PartitionSpec("a"))
    start = jax.jit(lambda: {"w": jnp.arange(32.0).reshape(8, 4)}, out_shardings=split)()
    step_of = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), start)
    with Checkpointer(folder, keep=2) as saved, Preemption(grace_s=20) as preemption:
        if mode == "damaged":       # one process alone cannot read: both must take the older step
            found = saved.restore(target)
            print("restored", found.step, found.passed_over[0][0], float(jnp.sum(found.state["w"])), flush=True)
            return
        for step in range(1, 100_000 if mode == "preempt" else 4):
            start = step_of(start)
            stop = preemption.reached(step)
            if stop or mode == "save":
                saved.save(step, start)
            if step == 3:
                print("ready", flush=True)
            if stop:
                print("saved", step, flush=True)
                break
            time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
