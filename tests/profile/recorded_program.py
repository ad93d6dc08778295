"""A small program, recorded while it runs on virtual CPU devices."""

from dataclasses import dataclass
from pathlib import Path

AXES = {"data": 4, "tensor": 2}
STEPS, LAYERS, EMBED, HIDDEN, BATCH = 4, 2, 64, 128, 32


@dataclass(frozen=True)
class Recorded:
    """A run folder with a profile of `STEPS` annotated steps, and the program's text."""

    folder: Path
    text: str

    @property
    def file(self) -> Path:
        return next(self.folder.glob("plugins/profile/*/*.xplane.pb"))


def record(folder: Path) -> Recorded:
    """A scanned two-layer perceptron, its weights sharded over both axes, trained on eight virtual CPU devices."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), (jax.sharding.AxisType.Auto,) * 2)

    def over(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def loss(weights, x):
        def layer(x, weight):
            up = jax.lax.with_sharding_constraint(weight[0], over(None, "tensor"))
            down = jax.lax.with_sharding_constraint(weight[1], over("tensor", None))
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ up) @ down, over("data", None)), None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    @jax.jit
    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    weights = (
        jax.device_put(jnp.full((LAYERS, EMBED, HIDDEN), 0.01), over(None, "data", "tensor")),
        jax.device_put(jnp.full((LAYERS, HIDDEN, EMBED), 0.01), over(None, "tensor", "data")),
    )
    x = jax.device_put(jnp.ones((BATCH, EMBED)), over("data", None))
    compiled = step.lower(weights, x).compile()
    for _ in range(2):      # the second call compiles for the shardings that the first one left
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
    return Recorded(folder, compiled.as_text())
