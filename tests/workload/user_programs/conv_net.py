"""A small residual convolutional network in plain JAX, with batch statistics."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

CHANNELS, CLASSES, IMAGE = (16, 32), 10, 16


def convolve(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def loss(params, batch):
    x = jax.nn.relu(convolve(batch["image"], params["stem"]))
    for w in params["blocks"]:
        h = convolve(jax.nn.relu(convolve(x, w["a"], 2)), w["b"])
        h = (h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-5) * w["scale"]
        x = jax.nn.relu(h + convolve(x, w["skip"], 2))
    logits = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
    return -(logits * jax.nn.one_hot(batch["label"], CLASSES)).sum(-1).mean()


def program(batch, seq):
    blocks, before = [], CHANNELS[0]
    for after in CHANNELS:
        shapes = {"a": (3, 3, before, 2 * after), "b": (3, 3, 2 * after, after), "skip": (1, 1, before, after)}
        blocks.append({name: jnp.zeros(shape) for name, shape in shapes.items()} | {"scale": jnp.ones(after)})
        before = after
    return SimpleNamespace(
        loss=loss,
        params={"stem": jnp.zeros((3, 3, 3, CHANNELS[0])), "head": jnp.zeros((before, CLASSES)), "blocks": blocks},
        batch={"image": jnp.zeros((batch, IMAGE, IMAGE, 3)), "label": jnp.zeros(batch, jnp.int32)},
    )
