"""Trains the reference decoder under a plan for a few steps, on eight virtual CPU devices.

    python examples/train_with_plan.py [plan.json]

On the plan's own machine, `plan.mesh()` takes the attached devices and nothing else changes.
"""

import tiny_plan

tiny_plan.virtual_devices()

import dataclasses  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402

import jaxplan  # noqa: E402
from jaxplan.workload.step import build  # noqa: E402

STEPS = 8


def batch(vocab: int, sequences: int, length: int) -> dict[str, np.ndarray]:
    """Sequences that count upwards: what comes next can be learned."""
    starts = np.random.default_rng(0).integers(0, vocab, (sequences, 1))
    tokens = ((starts + np.arange(length + 1)) % vocab).astype(np.int32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def main() -> None:
    plan = jaxplan.load(tiny_plan.plan_path("train the reference decoder under a plan"))
    mesh = plan.mesh(virtual=True)
    print(plan.summary())

    # the target's attention kernel and flags mean nothing to a CPU
    here = dataclasses.replace(plan.plan, attention="blockwise", compiler_flags={})
    step = build(here, mesh)
    state = step.init(jax.random.key(0))
    train = plan.jit(step.function, mesh=mesh)

    work = plan.plan.workload
    data, losses = batch(work.model.vocab, work.batch, work.seq), []
    for i in range(STEPS):
        state, metrics = train(state, data)
        losses.append(float(metrics["loss"]))
        print(f"step {i}  loss {losses[-1]:.4f}")
    tiny_plan.check_falls(losses)
    up = state.params["layers"]["up"]
    local = up.addressable_shards[0].data.shape
    print(f"layers.up {up.shape} lies as {plan.spec('layers.up')}: {local} a device")


if __name__ == "__main__":
    main()
