"""A small image transformer in Flax nnx, layers unrolled, with dropout; it takes no sequence length."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

EMBED, MLP, HEADS, LAYERS, CLASSES, IMAGE, PATCH = 64, 128, 8, 2, 10, 16, 4


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(EMBED, rngs=rngs), nnx.LayerNorm(EMBED, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=HEADS, in_features=EMBED, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(EMBED, MLP, rngs=rngs), nnx.Linear(MLP, EMBED, rngs=rngs)
        self.dropout = nnx.Dropout(0.1)

    def __call__(self, x, rngs):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.dropout(nnx.gelu(self.up(self.norm2(x))), rngs=rngs))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.patch = nnx.Conv(3, EMBED, (PATCH, PATCH), strides=(PATCH, PATCH), padding="VALID", rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((1, (IMAGE // PATCH) ** 2, EMBED)))
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(EMBED, CLASSES, rngs=rngs)

    def __call__(self, images, rngs):
        x = self.patch(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.positions[...]
        for block in self.blocks:
            x = block(x, rngs)
        return self.head(x.mean(1))


def program(batch):
    graph, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, batch):
        logits = nnx.merge(graph, params, rest)(batch["image"], nnx.Rngs(dropout=batch["key"]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return loss, params, {
        "image": jax.ShapeDtypeStruct((batch, IMAGE, IMAGE, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
        "key": jax.random.key(1),
    }
