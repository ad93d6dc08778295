"""A plan's PartitionSpecs in a Flax nnx model that jaxplan has never seen, trained with an `nnx.Optimizer`.

    python examples/nnx_model.py [plan.json]

nnx keeps names of dims in the metadata of its variables; the optimizer's variables inherit them.
"""

import tiny_plan

tiny_plan.virtual_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

import jaxplan  # noqa: E402

STEPS, BATCH, PATCHES, PATCH, CLASSES, EMBED, MLP = 8, 16, 16, 48, 10, 64, 256


def named(*dims: str | None) -> nnx.Initializer:
    """An initializer whose parameter bears the names of its dims."""
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), dims)


class Model(nnx.Module):
    """Image patches to classes: a projection, a feed-forward layer, a mean over patches."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.project = nnx.Linear(PATCH, EMBED, kernel_init=named(None, "embed"), rngs=rngs)
        self.norm = nnx.LayerNorm(EMBED, rngs=rngs)
        self.up = nnx.Linear(EMBED, MLP, kernel_init=named("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(MLP, EMBED, kernel_init=named("mlp", "embed"), rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.classify = nnx.Linear(EMBED, CLASSES, kernel_init=named("embed", None), rngs=rngs)

    def __call__(self, patches: jax.Array) -> jax.Array:
        x = self.project(patches)
        x = x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x)))))
        return self.classify(x.mean(axis=1))


def make(key: jax.Array) -> tuple[Model, nnx.Optimizer]:
    # the plan shards the state; nnx would want a mesh for every variable that it makes
    with nnx.use_eager_sharding(False):
        model = Model(nnx.Rngs(key))
        return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


def main() -> None:
    plan = jaxplan.load(tiny_plan.plan_path(__doc__.splitlines()[0]))
    mesh = plan.mesh(virtual=True)
    graph, abstract = nnx.split(nnx.eval_shape(make, jax.random.key(0)))

    def train_step(state: nnx.State, batch: dict[str, jax.Array]) -> tuple[nnx.State, dict[str, jax.Array]]:
        model, optimizer = nnx.merge(graph, state)

        def loss(model: Model) -> jax.Array:
            logits = model(batch["patches"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), {"loss": value}

    shardings = plan.shardings(abstract, mesh)
    state = jax.jit(lambda key: nnx.state(make(key)), out_shardings=shardings)(jax.random.key(0))
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, BATCH).astype(np.int32)
    patches = random.normal(size=(BATCH, PATCHES, PATCH)) + labels[:, None, None] / CLASSES
    batch = {"patches": jnp.asarray(patches, jnp.float32), "labels": labels}

    train, losses = plan.jit(train_step, mesh=mesh), []
    for i in range(STEPS):
        state, metrics = train(state, batch)
        losses.append(float(metrics["loss"]))
        print(f"step {i}  loss {losses[-1]:.4f}")
    tiny_plan.check_falls(losses)
    model, optimizer = nnx.merge(graph, state)
    moment = optimizer.opt_state[0].mu["up"]["kernel"]
    for name, kernel in (("parameter", model.up.kernel[...]), ("first moment", moment[...])):
        local = kernel.addressable_shards[0].data.shape
        print(f"{name} {kernel.shape}: {kernel.sharding.spec}, {local} a device")


if __name__ == "__main__":
    main()
