"""A small language model in Flax linen, layers scanned, whose boxes name some dims, and one by a name of its own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sizes import EMBED, HEADS, LAYERS, VOCAB

import jaxplan

MLP = 192


def boxed(*names):
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(nn.LayerNorm()(x), mask=mask)
        h = nn.gelu(nn.Dense(MLP, kernel_init=boxed("embed", "hidden"))(nn.LayerNorm()(x)))
        return x + nn.Dense(EMBED, kernel_init=boxed("hidden", "embed"))(h), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(VOCAB, EMBED)
        x = table(tokens) + self.param("positions", nn.initializers.normal(), (tokens.shape[1], EMBED))
        stack = nn.scan(
            nn.remat(Block),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return table.attend(nn.LayerNorm()(stack()(x, None)[0]))


def program(batch, seq):
    tokens, model = jax.ShapeDtypeStruct((batch, seq), jnp.int32), Model()
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(params, batch):
        logits = model.apply(params, batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    return jaxplan.Program(loss, params, {"tokens": tokens, "targets": tokens})
