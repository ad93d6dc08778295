"""A language model in plain Flax linen: nothing in it knows of meshes. jaxplan finds how to shard it:

    python -m jaxplan search --mesh 8x16 --workload examples/my_model.py:program

`--batch` and `--seq` become the function's arguments. Shapes are enough: no parameter is ever made.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxplan

LAYERS, EMBED, MLP, HEADS, VOCAB = 24, 1024, 4096, 16, 50304


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2], jnp.bool))
        attention = nn.MultiHeadDotProductAttention(num_heads=HEADS, dtype=jnp.bfloat16)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        h = nn.gelu(nn.Dense(MLP, dtype=jnp.bfloat16)(nn.LayerNorm()(x)))
        return x + nn.Dense(EMBED, dtype=jnp.bfloat16)(h), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16)
        small = nn.initializers.normal(0.02)
        x = table(tokens) + self.param("positions", small, (tokens.shape[1], EMBED), jnp.bfloat16)
        stack = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return table.attend(nn.LayerNorm()(stack()(x, None)[0]))


def program(batch: int, seq: int = 1024) -> jaxplan.Program:
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = model.apply(params, batch["tokens"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    return jaxplan.Program(loss, params, {"tokens": tokens, "targets": tokens})
