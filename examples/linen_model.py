"""A plan's PartitionSpecs in a Flax linen model that jaxplan has never seen, with a `TrainState` and optax.

    python examples/linen_model.py [plan.json]

The model names the dims of its parameters and activations; the plan says which mesh axes they go to.
"""

import tiny_plan

tiny_plan.virtual_devices()

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

import jaxplan  # noqa: E402

STEPS, BATCH, LENGTH, VOCAB, EMBED, MLP = 8, 16, 32, 128, 64, 256


def named(*dims: str | None) -> nn.initializers.Initializer:
    """An initializer whose parameter bears the names of its dims."""
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), dims)


class Model(nn.Module):
    """Tokens to logits of the next: an embedding, a causal mean, a feed-forward layer."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, EMBED, embedding_init=named("vocab", "embed"))(tokens)
        mean = jnp.cumsum(x, axis=1) / jnp.arange(1, tokens.shape[1] + 1)[:, None]
        x = nn.with_logical_constraint(nn.LayerNorm()(x + mean), ("batch", "seq", "embed"))
        h = nn.gelu(nn.Dense(MLP, kernel_init=named("embed", "mlp"))(x))
        h = nn.with_logical_constraint(h, ("batch", None, "mlp"))
        x = x + nn.Dense(EMBED, kernel_init=named("mlp", "embed"))(h)
        return nn.Dense(VOCAB, kernel_init=named("embed", "vocab"), use_bias=False)(x)


def init(key: jax.Array) -> TrainState:
    model = Model()
    params = model.init(key, jnp.zeros((1, LENGTH), jnp.int32))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))


def train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    def loss(params: dict) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), {"loss": value}


def main() -> None:
    plan = jaxplan.load(tiny_plan.plan_path(__doc__.splitlines()[0]))
    mesh = plan.mesh(virtual=True)

    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, 1)) + np.arange(LENGTH + 1)
    tokens = (tokens % VOCAB).astype(np.int32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}

    with jax.set_mesh(mesh), nn.logical_axis_rules(plan.axis_rules()):
        shardings = plan.shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
        state = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
        train, losses = plan.jit(train_step, mesh=mesh), []
        for i in range(STEPS):
            state, metrics = train(state, batch)
            losses.append(float(metrics["loss"]))
            print(f"step {i}  loss {losses[-1]:.4f}")
    tiny_plan.check_falls(losses)
    for name, tree in (("parameter", state.params), ("first moment", state.opt_state[0].mu)):
        kernel = tree["Dense_0"]["kernel"].value
        local = kernel.addressable_shards[0].data.shape
        print(f"{name} {kernel.shape}: {kernel.sharding.spec}, {local} a device")


if __name__ == "__main__":
    main()
